"""Pictures of what other commands measured or modelled; matplotlib is an extra, and is imported where one is drawn.

canvas   files, colours, and the sentence that says what is missing
curves   from documents to lines over the size: pure;  latency: draws them
heat     pairwise figures as maps
bars     a verify pass, stacked
"""
