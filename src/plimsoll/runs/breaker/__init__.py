"""The breaker: a run that would be worthless does not start, or stops by itself.

`admission` decides before a run if its tasks may run. During the run the `Breaker` passes each
finished trial to its watches, one file per watch. `canaries` decides when an oracle trial is due
and which trials a failed one voids. A watch reports a `Trip`; `diagnosis` explains it to a
person.

The watches are plain state: no clock, no file, no memory that grows with the number of trials.
"""
