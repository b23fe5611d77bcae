"""What operators do with tokens: the subcommands and the page of the admin."""

import json
from io import StringIO

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from django_pgqueue.contrib.remote.machine_tokens import create_token, digest_of
from django_pgqueue.contrib.remote.models import RemoteToken
from django_pgqueue.lifecycle import remote_tokens
from tests.app import tasks
from tests.documents import loose_blocks

LIST = "/admin/pgqueue_remote/remotetoken/"
pytestmark = pytest.mark.django_db


def run(*arguments):
    out, err = StringIO(), StringIO()
    call_command("pgqueue", "remote-token", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_command_creates_lists_and_revokes_token():
    secret, words = run(
        *("create", "vm-7", "--queues", "mail,default", "--task", tasks.add.name),
        *("--expires-in", "30", "--requests-per-minute", "60"),
    )
    row = remote_tokens.use_remote_token(connection, digest_of(secret.strip()))
    assert row[1:] == ("vm-7", ("mail", "default"), (tasks.add.name,), 60)
    assert "cannot be shown again" in words
    [listed] = json.loads(run("list", "--json")[0])["tokens"]
    assert (listed["name"], listed["state"], listed["queues"]) == ("vm-7", "valid", ["mail", "default"])
    assert secret.strip() not in json.dumps(listed)
    assert "vm-7" in run("list")[0]
    assert "Revoked" in run("revoke", "vm-7")[1]
    assert remote_tokens.use_remote_token(connection, digest_of(secret.strip())) is None
    assert json.loads(run("list", "--json")[0])["tokens"] == []
    [listed] = json.loads(run("list", "--json", "--all")[0])["tokens"]
    assert listed["state"] == "revoked"


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["create", "\n"], "not a valid name", 2),
        (["create", "a", "--expires-in", "0"], "--expires-in 0", 2),
        (["create", "a", "--task", tasks.create_group.name], "it is atomic", 2),
        (["create", "taken"], "'taken'", 1),
        (["revoke", "missing"], "No valid token", 3),
        (["revoke", "99999"], "No valid token", 3),
    ],
)
def test_command_refuses_with_reason(arguments, words, code):
    create_token(connection, "taken")
    with pytest.raises(CommandError, match=words) as raised:
        run(*arguments)
    assert raised.value.returncode == code


def test_guide_installs_app_and_includes_urls():
    names = {"INSTALLED_APPS": [], "urlpatterns": []}
    for block in loose_blocks("docs/production/remote_workers.md"):
        exec(block, names)  # noqa: S102 -- our own text
    assert names["INSTALLED_APPS"] == ["django_pgqueue.contrib.remote"]
    [included] = names["urlpatterns"]
    assert included.resolve("remote/v1/claim").url_name == "pgqueue_remote_claim"


@pytest.fixture
def client_of():
    def make(*codenames):
        user = User.objects.create_user("staff", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        return client

    return make


def test_admin_lists_tokens_without_digest_and_revokes(client_of, django_assert_max_num_queries):
    client = client_of("view_remotetoken", "revoke_remotetoken")
    secret = create_token(connection, "vm <7>", queue_names=["mail"])
    token = RemoteToken.objects.get()
    with django_assert_max_num_queries(8):
        page = client.get(LIST).content.decode()
    assert "vm &lt;7&gt;" in page and "mail" in page
    assert bytes(token.digest).hex() not in page
    assert client.get(f"{LIST}{token.pk}/change/").status_code == 302
    form = {"action": "revoke_selected", "_selected_action": token.pk}
    assert "is revoked" in client.post(LIST, form, follow=True).content.decode()
    assert remote_tokens.use_remote_token(connection, digest_of(secret)) is None
    assert LogEntry.objects.get().change_message == "Revoked."
    token.refresh_from_db()
    assert token.revoked_by == "staff"
    assert "was revoked before" in client.post(LIST, form, follow=True).content.decode()


def test_admin_without_permission_shows_and_revokes_nothing(client_of):
    create_token(connection, "vm-7")
    token = RemoteToken.objects.get()
    client = client_of("view_remotetoken")
    client.post(LIST, {"action": "revoke_selected", "_selected_action": token.pk})
    token.refresh_from_db()
    assert token.revoked_at is None
    for path in (f"{LIST}add/", f"{LIST}{token.pk}/delete/"):
        assert client.get(path).status_code == 403
    client.logout()
    assert client.get(LIST).status_code == 302
