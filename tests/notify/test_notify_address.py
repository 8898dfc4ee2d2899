"""Addresses of --notify: what is accepted, and that no text about one holds its secret."""

from __future__ import annotations

import pytest

from clusterrun.model.errors import BadInput
from clusterrun.notify.notify_address import APPRISE, MAIL, SLACK, WEB, NotifyAddress, read_address, shortened

HOOK = "https://hooks.slack.com/services/T0/B0/s3cret"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("slack://T0/B0/s3cret", NotifyAddress(SLACK, HOOK, "slack://…")),
        ("slack://T0/B0/s3cret/", NotifyAddress(SLACK, HOOK, "slack://…")),
        (HOOK, NotifyAddress(SLACK, HOOK, "https://hooks.slack.com/…")),
        (
            "https://example.org:8443/hook?key=s3cret",
            NotifyAddress(WEB, "https://example.org:8443/hook?key=s3cret", "https://example.org:8443/…"),
        ),
        ("http://[::1]:80/x", NotifyAddress(WEB, "http://[::1]:80/x", "http://[::1]:80/…")),
        (
            "https://ada:s3cret@example.org/x",
            NotifyAddress(WEB, "https://ada:s3cret@example.org/x", "https://example.org/…"),
        ),
        ("mailto:ada@example.org", NotifyAddress(MAIL, "ada@example.org", "mailto:ada@example.org")),
        (
            "mailto:a@x.org,b@y.org?smtp=mail.x.org:25&from=slurm@x.org",
            NotifyAddress(
                MAIL,
                "a@x.org,b@y.org",
                "mailto:a@x.org,b@y.org?smtp=mail.x.org:25&from=slurm@x.org",
                "mail.x.org:25",
                "slurm@x.org",
            ),
        ),
        (
            "mailtos://ada:s3cret@example.org",
            NotifyAddress(APPRISE, "mailtos://ada:s3cret@example.org", "mailtos://…"),
        ),
        ("slack://bot@T0/B0/s3cret", NotifyAddress(APPRISE, "slack://bot@T0/B0/s3cret", "slack://…")),
        ("discord://1/s3cret", NotifyAddress(APPRISE, "discord://1/s3cret", "discord://…")),
    ],
)
def test_an_address_names_its_kind_and_its_target(url: str, expected: NotifyAddress) -> None:
    assert read_address(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3cret",
        "hooks.slack.com/services/T0/B0/s3cret",
        "https://",
        "https:///s3cret",
        "https://example.org:http/s3cret",
        "https://example.org/s3 cret",
        "https://example.org/s3cret\nX: y",
        "https://example.org/é/s3cret",
        "https://example.org/…",
        "Slack+://s3cret",
        "slack:T0/B0/s3cret",
        "mailto:",
        "mailto:ada",
        "mailto:ada@",
        "mailto:ada@example.org,",
        "mailto:-f@-x",
        "mailto:ada@example.org%0ABcc:eve@example.org",
        'mailto:"a b"@example.org',
        "mailto:ada@example.org?cc=eve@example.org",
        "mailto:ada@example.org?smtp=a%20b",
        "mailto:ada@example.org?from=x",
    ],
)
def test_anything_else_is_refused_and_its_secret_is_not_shown(url: str) -> None:
    with pytest.raises(BadInput) as error:
        read_address(url)
    assert "s3cret" not in str(error.value)
    assert error.value.remedy


def test_a_shortened_address_is_refused_with_the_reason() -> None:
    with pytest.raises(BadInput, match="shortened") as error:
        read_address(shortened(HOOK))
    assert "whole address" in error.value.remedy
