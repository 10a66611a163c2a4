"""The breaker: a run that would be worthless does not start, or stops by itself.

`admission` decides before a run whether its tasks may run at all. During it the `Breaker`
gives each finished trial to its watches, one file a watch; `canaries` says when an oracle
trial is due and which trials a failed one takes with it. What a watch finds is a `Trip`,
and `diagnosis` says it to a person.

The watches are plain state: no clock, no file, nothing that grows with the trials run.
"""
