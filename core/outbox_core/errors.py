"""
The error tree. What a person must act on carries the cure in its text.

OutboxError
├── SettingsError          the configuration cannot be used
├── StoreError             the database
│   ├── StoreUnavailable   it does not answer: wait and try again
│   │   ├── StoreReadOnly  it answers, and takes no writes: a standby, a failover
│   │   ├── StoreBusy      it answers, and somebody holds a lock that we need
│   │   ├── WrongPassword  it answers, and does not accept the password
│   │   ├── LoginRefused   it answers, and no user of that name may log in from here
│   │   ├── TlsFailed      no TLS, a certificate that is not trusted, or one that is missing
│   │   └── DatabaseMissing    the server has no database of that name
│   ├── RightMissing       the database user lacks a right
│   ├── SchemaMissing      outbox-relay migrate has not run
│   ├── SchemaOutdated     outbox-relay migrate of an older version has run
│   ├── SchemaTooNew       the database is ahead of this program
│   ├── RelayUnknown       no relay of that name has registered
│   └── RequestRefused     a rule of the outbox forbids it; nothing changed
│       ├── SelectionInvalid   a replay's selection cannot be used
│       └── TooManyEvents      more events match than a replay may take
├── EngineFailed           Spark could not do it: another attempt may
├── PublisherError         the broker does not answer, or its client cannot be made
│   └── BrokerRefused      it answers, and does not let us in
└── Defect                 a fault of the program

Each has its name for machines in `contract.reasons`.
"""


class OutboxError(Exception):
    """Something that its reader can do something about: shown without a stack trace."""


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


NOT_LET_IN = (WrongPassword, LoginRefused, TlsFailed)
"""The database answers, and does not let us in: a credential or a certificate must change."""


class DatabaseMissing(StoreUnavailable):
    pass


class RightMissing(StoreError):
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
