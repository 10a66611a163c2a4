"""Signs in a grader's output that explain a missing reward or a 0; one file per kind of sign.

Each sign is a function that searches the output for one fault and tells who is to blame. The
judge weighs the signs; none of them decides alone.
"""
