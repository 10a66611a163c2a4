import msgspec
from recording_parts import (
    END,
    TOOLS,
    Spoken,
    Talk,
    assistant,
    bash,
    done,
    prompted,
    system,
    tool,
    user,
)

from plimsoll.trajectories.graph import Graph
from plimsoll.trajectories.messages import Message, Text
from plimsoll.trajectories.records import Exchange, MessageAdded, ToolsAdded
from plimsoll.trajectories.reported_tokens import TokenIds

S, U, A = system("you help"), user("fix it"), assistant("looking", bash("c1"))
T = tool("c1", "a.py")


def follows(exchange: Exchange) -> tuple[str, int]:
    return exchange.branch, exchange.parent


def test_a_continued_conversation_extends_its_last_exchange(talk: Talk):
    assert follows(talk.ask(S, U, answer=A, tools=TOOLS)) == ("start", -1)
    second = talk.ask(S, U, A, T, answer=assistant("done"), tools=TOOLS)
    third = talk.ask(S, U, A, T, assistant("done"), user("more"), answer=A, tools=TOOLS)
    assert follows(second) == ("extends", 0)
    assert follows(third) == ("extends", 1)


def test_a_re_encoded_answer_still_extends(talk: Talk):
    answer = assistant("looking around", bash("c1", '{"a": 1.0, "b": 2}'))
    talk.ask(U, answer=answer)
    echo = Message(
        "assistant", (Text("looking "), Text("around\n")), calls=(bash("c1", '{"b":2,"a":1}'),)
    )
    # The client's text differs, but the tokens are those of the answer.
    exchange = talk.recorder.commit(
        talk.recorder.locate(Spoken([U, echo, T]), None), done([U, answer, T], assistant("ok"))
    )
    assert follows(exchange) == ("extends", 0)


def test_only_new_messages_are_parsed():
    graph = Graph()
    history = [S, U]
    for turn in range(20):
        answer = assistant(f"turn {turn}", bash(f"c{turn}"))
        spoken = Spoken(history)
        graph.commit(graph.locate(spoken, TOOLS), done(history, answer))
        assert spoken.read == 2
        history = [*history, answer, tool(f"c{turn}", "out")]


def test_a_message_is_written_once(talk: Talk):
    graph = Graph()
    first = graph.commit(graph.locate(Spoken([S, U]), TOOLS), done([S, U], A))
    second = graph.commit(graph.locate(Spoken([S, U, A, T]), TOOLS), done([S, U, A, T], A))
    assert [type(one) for one in first] == [
        ToolsAdded,
        MessageAdded,
        MessageAdded,
        MessageAdded,
        Exchange,
    ]
    assert [type(one) for one in second] == [MessageAdded, MessageAdded, Exchange]


def test_compaction_is_a_rewritten_branch(talk: Talk):
    talk.ask(S, U, answer=A)
    talk.ask(S, U, A, T, answer=assistant("step"))
    compacted = talk.ask(S, user("so far: a.py was seen"), answer=assistant("on"))
    assert follows(compacted) == ("rewritten", 0)
    goes_on = talk.ask(
        S, user("so far: a.py was seen"), assistant("on"), user("x"), answer=assistant("y")
    )
    assert follows(goes_on) == ("extends", 2)


def test_a_sub_agent_with_its_own_system_prompt_is_a_start(talk: Talk):
    talk.ask(S, U, answer=A, tools=TOOLS)
    assert follows(talk.ask(system("you search"), U, answer=A, tools=TOOLS)) == ("start", -1)
    assert follows(talk.ask(S, U, A, T, answer=A, tools=TOOLS)) == ("extends", 0)


def test_an_edited_message_is_rewritten_with_the_exchange_that_shares_most(talk: Talk):
    talk.ask(S, U, answer=A)
    talk.ask(S, user("other"), user("and this"), answer=A)
    edited = talk.ask(S, user("other"), user("and that"), answer=A)
    assert follows(edited) == ("rewritten", 1)


def test_a_history_cut_back_to_an_answer_extends_that_answer(talk: Talk):
    talk.ask(S, U, answer=A)
    talk.ask(S, U, A, T, answer=assistant("wrong way"))
    back = talk.ask(S, U, A, tool("c1", "b.py"), answer=assistant("right way"))
    assert follows(back) == ("extends", 0)


def test_parallel_calls_and_their_results_extend(talk: Talk):
    answer = assistant("", bash("c1"), bash("c2"))
    talk.ask(U, answer=answer)
    exchange = talk.ask(U, answer, tool("c1", "x"), tool("c2", "y"), answer=assistant("ok"))
    assert follows(exchange) == ("extends", 0)


def test_the_same_request_answered_twice_is_again(talk: Talk):
    talk.ask(U, answer=A)
    talk.ask(U, A, T, answer=assistant("one"))
    again = talk.ask(U, A, T, answer=assistant("two"))
    assert follows(again) == ("again", 1)
    assert again.tokens is not None
    assert again.tokens.prompt == b""
    assert follows(talk.ask(U, A, T, assistant("two"), user("x"), answer=A)) == ("extends", 2)
    assert follows(talk.ask(U, A, T, assistant("one"), user("x"), answer=A)) == ("extends", 1)


async def test_equal_answers_keep_their_own_reasoning(talk: Talk):
    silent = [assistant(reasoning="first thought"), assistant(reasoning="second thought")]
    talk.ask(U, answer=silent[0])
    talk.ask(U, answer=silent[1])
    after = [U, assistant(), user("say something")]
    # A server that repeats the reasoning: the tokens decide which of the two is followed.
    talk.recorder.commit(
        talk.recorder.locate(Spoken(after), None),
        done([U, silent[0], after[2]], A, tokens=None),
    )
    trajectory = await talk.close()
    assert [trajectory.answer_of(one).reasoning for one in trajectory.exchanges[:2]] == [
        "first thought",
        "second thought",
    ]
    last = trajectory.exchanges[2]
    assert follows(last) == ("extends", 1)
    assert trajectory.messages_of(last)[1].reasoning == "second thought"


def test_tokens_decide_between_equal_answers(talk: Talk):
    talk.ask(U, answer=assistant("x"))
    # The same text with other ids.
    spelt = TokenIds(prompted([U]), [9, 9, 9, END], [-0.5] * 4)
    talk.ask(U, answer=assistant("x"), tokens=spelt, answer_tokens=4)
    assert follows(talk.ask(U, assistant("x"), user("y"), answer=A)) == ("extends", 0)


def test_concurrent_requests_are_located_in_either_order():
    for order in ((0, 1), (1, 0)):
        graph = Graph()
        graph.commit(graph.locate(Spoken([S, U]), TOOLS), done([S, U], A))
        prompts = [[S, U, A, T], [S, U, A, T, user("and"), user("more")]]
        positions = [graph.locate(Spoken(prompt), TOOLS) for prompt in prompts]
        for index in order:
            *_, exchange = graph.commit(
                positions[index], done(prompts[index], assistant(f"{index}"))
            )
            assert isinstance(exchange, Exchange)
            assert follows(exchange) == ("extends", 0)
            assert exchange.tokens is not None


def test_the_same_request_twice_in_flight_is_one_prompt_with_two_answers():
    graph = Graph()
    positions = [graph.locate(Spoken([S, U]), TOOLS) for _ in range(2)]
    first = graph.commit(positions[0], done([S, U], assistant("one")))
    second = graph.commit(positions[1], done([S, U], assistant("two")))
    assert [type(one) for one in second] == [MessageAdded, Exchange]
    assert isinstance(second[-1], Exchange)
    assert isinstance(first[-1], Exchange)
    assert second[-1].prompt == first[-1].prompt
    assert follows(second[-1]) == ("again", 0)


def test_a_position_that_is_never_committed_changes_nothing():
    graph = Graph()
    graph.locate(Spoken([S, U]), TOOLS)
    added = graph.commit(graph.locate(Spoken([S, U]), TOOLS), done([S, U], A))
    assert [one.id for one in added[:-1]] == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert graph.exchanges == 1


def test_tools_that_change_make_a_rewritten_branch_of_the_same_messages(talk: Talk):
    talk.ask(S, U, answer=A, tools=TOOLS)
    talk.ask(S, U, A, T, answer=assistant("x"), tools=TOOLS)
    changed = talk.ask(S, U, A, T, answer=assistant("x"), tools=msgspec.Raw(b'[{"n":1}]'))
    assert follows(changed) == ("rewritten", 1)


def test_no_tools_and_an_empty_list_of_tools_are_the_same(talk: Talk):
    talk.ask(S, U, answer=A)
    assert follows(talk.ask(S, U, A, T, answer=A, tools=msgspec.Raw(b"[]"))) == ("extends", 0)


def test_a_request_without_messages_is_recorded_too(talk: Talk):
    assert follows(talk.ask(answer=A)) == ("start", -1)
    assert follows(talk.ask(answer=A)) == ("again", 0)
