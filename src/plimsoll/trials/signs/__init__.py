"""What a grader's output says about why it wrote nothing, or 0. One file a kind of sign.

Each sign is a function of the output that finds one thing and says whose it is. `judge`
weighs them; none of them decides alone.
"""
