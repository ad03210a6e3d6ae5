"""Every all-reduce that is timed. `base` is the Protocol; `catalogue` names them all; `make` builds one in a rank."""
