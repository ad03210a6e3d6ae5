"""One page about a machine, to attach to an issue.

sections   the commands that it is made of, each run once in a process of its own
page       from what they printed and drew to one HTML file that needs nothing else
"""
