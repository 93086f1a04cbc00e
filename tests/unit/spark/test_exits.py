"""Which errors another attempt may get over, and which only a person can."""

import pytest

from outbox_core import errors
from outbox_core.contract.replay import Exit
from outbox_spark.exits import exit_of


@pytest.mark.parametrize(
    "kind",
    [
        errors.StoreUnavailable,
        errors.StoreReadOnly,
        errors.StoreError,
        errors.EngineFailed,
        errors.SchemaOutdated,  # in an upgrade, until somebody has migrated it
        errors.Defect,
    ],
)
def test_another_attempt_may_get_over_it(kind: type[errors.OutboxError]) -> None:
    assert exit_of(kind("text"), begun=False) is Exit.AGAIN
    assert exit_of(kind("text"), begun=True) is Exit.AGAIN


@pytest.mark.parametrize(
    "kind",
    [
        errors.SettingsError,
        errors.WrongPassword,
        errors.LoginRefused,
        errors.TlsFailed,
        errors.DatabaseMissing,
        errors.PermissionDenied,
        errors.SchemaMissing,
        errors.SchemaTooNew,
        errors.RelayUnknown,
        errors.RequestRefused,
        errors.SelectionInvalid,
        errors.TooManyEvents,
    ],
)
def test_a_person_must_change_something_first(kind: type[errors.OutboxError]) -> None:
    assert exit_of(kind("text"), begun=False) is Exit.FINAL


def test_a_password_that_was_right_before_was_changed_and_another_attempt_has_the_new_one() -> None:
    assert exit_of(errors.WrongPassword("text"), begun=True) is Exit.AGAIN
    assert exit_of(errors.TlsFailed("text"), begun=True) is Exit.AGAIN
    assert exit_of(errors.PermissionDenied("text"), begun=True) is Exit.FINAL
