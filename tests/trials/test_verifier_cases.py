"""What a grader can do and what must come of it: real graders in real sandboxes."""

async def test_a(write_task, run):
    ran = await run(write_task())
    print(ran.verdict, ran.phases)


async def test_b(write_pytest_task, run):
    ran = await run(write_pytest_task(tests="def test_x():\n    assert 0"))
    print(ran.verdict, ran.phases, ran.read("verifier/stdout.txt"))

async def test_c(write_pytest_task, run):
    ran = await run(write_pytest_task(tests="def test_x():\n    assert 0"))
    print(ran.verdict, ran.phases, ran.read("verifier/stdout.txt"))
