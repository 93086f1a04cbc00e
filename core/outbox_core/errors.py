"""
The error tree. The text of an error that a person must act on includes the cure.

OutboxError
├── SettingsError          the configuration cannot be used
├── StoreError             the database
│   ├── StoreUnavailable   it does not answer: wait and try again
│   │   ├── StoreReadOnly  it answers but accepts no writes: a standby, or a failover
│   │   ├── StoreBusy      it answers but another session holds a lock that we need
│   │   ├── WrongPassword  it answers but does not accept the password
│   │   ├── LoginRefused   it answers but this user may not log in from here
│   │   ├── TlsFailed      no TLS, or a certificate that is missing or not trusted
│   │   └── DatabaseMissing    the server has no database of that name
│   ├── PermissionDenied   the database user lacks a right
│   ├── SchemaMissing      outbox-relay migrate has not run
│   ├── SchemaOutdated     outbox-relay migrate of an older version has run
│   ├── SchemaTooNew       the database is ahead of this program
│   ├── RelayUnknown       no relay of that name has registered
│   └── RequestRefused     a rule of the outbox forbids it; nothing changed
│       ├── SelectionInvalid   a replay's selection cannot be used
│       └── TooManyEvents      more events match than a replay may take
├── EngineFailed           Spark failed: another attempt may succeed
├── PublisherError         the broker does not answer, or its client cannot be made
│   └── BrokerRefused      it answers but refuses our credentials or certificate
└── Defect                 a bug in the program

`contract.reasons` has the machine-readable name of each.
"""


class OutboxError(Exception):
    """An error that its reader can act on: shown without a stack trace."""


class SettingsError(OutboxError):
    pass


class StoreError(OutboxError):
    pass


class StoreUnavailable(StoreError):
    pass


class StoreReadOnly(StoreUnavailable):
    pass


class StoreBusy(StoreUnavailable):
    pass


class WrongPassword(StoreUnavailable):
    pass


class LoginRefused(StoreUnavailable):
    pass


class TlsFailed(StoreUnavailable):
    pass


ACCESS_REFUSED = (WrongPassword, LoginRefused, TlsFailed)
"""The database answers but refuses us: a credential or a certificate must change."""


class DatabaseMissing(StoreUnavailable):
    pass


class PermissionDenied(StoreError):
    pass


class SchemaMissing(StoreError):
    pass


class SchemaOutdated(StoreError):
    pass


class SchemaTooNew(StoreError):
    pass


class RelayUnknown(StoreError):
    pass


class RequestRefused(StoreError):
    pass


class SelectionInvalid(RequestRefused):
    pass


class TooManyEvents(RequestRefused):
    pass


class EngineFailed(OutboxError):
    pass


class PublisherError(OutboxError):
    pass


class BrokerRefused(PublisherError):
    pass


class Defect(OutboxError):
    pass
