"""The list of models, as both clients read it."""

import anthropic
import httpx2
import openai
import pytest

from plimsoll.gateway.dialects.registry import speaks_anthropic
from plimsoll.gateway.http.routes import write_model, write_models


def answers(request: httpx2.Request) -> httpx2.Response:
    asked_by_anthropic = speaks_anthropic(request.headers)
    name = request.url.path.removeprefix("/v1/models").removeprefix("/")
    body = (
        write_model(name, anthropic=asked_by_anthropic)
        if name
        else write_models(["policy", "other"], anthropic=asked_by_anthropic)
    )
    return httpx2.Response(200, content=body, headers={"content-type": "application/json"})


@pytest.fixture
def http_client() -> httpx2.Client:
    return httpx2.Client(transport=httpx2.MockTransport(answers))


def test_openais_client_lists_the_models(http_client: httpx2.Client):
    client = openai.OpenAI(base_url="http://gateway/v1", api_key="k", http_client=http_client)
    assert [model.id for model in client.models.list()] == ["policy", "other"]
    model = client.models.retrieve("policy")
    assert (model.id, model.object) == ("policy", "model")


def test_anthropics_client_lists_the_models(http_client: httpx2.Client):
    client = anthropic.Anthropic(base_url="http://gateway", api_key="k", http_client=http_client)
    assert [model.id for model in client.models.list()] == ["policy", "other"]
    model = client.models.retrieve("policy")
    assert (model.id, model.display_name, model.type) == ("policy", "policy", "model")
    assert model.created_at.year == 1970


def test_the_list_of_models_may_be_empty():
    assert write_models([], anthropic=False) == b'{"object":"list","data":[]}'
    assert b'"has_more":false' in write_models([], anthropic=True)
