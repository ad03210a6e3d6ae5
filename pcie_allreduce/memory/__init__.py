"""Will it fit? `facts` says what is known of a start, `log` reads it off a server's log, `pool` does the arithmetic,
`batch` that of hidden-state extraction, `buffers` that of NCCL and of this package; `told` puts it into words.

GB are 2^30 bytes here, as the engines print them.
"""
