"""What is right and wrong with a machine: `reading` makes a `Box`, frozen and JSON; `examine` decides on it alone."""
