"""Parts for tests of code that uses Plimsoll: a scripted policy, faults, clocks, idle workers.

    from plimsoll.testing.scripted import Script, Turn, serve_script

    async with serve_script(Script(turns=(Turn(text="done"),))) as server:
        ...  # server.url is an OpenAI-compatible policy

- `scripted`: a policy that answers from a script, in this process or behind an HTTP server.
- `faults`: a backend around a real one, with delays and errors.
- `clocks`: a clock that a test moves.
- `workers`: an engine whose workers start at once and run nothing.
- `waiting`: waiting for a condition.

Production code never imports this package.
"""
