"""
The error tree. What a person must act on carries the cure in its text.

OutboxError
├── SettingsError          the configuration cannot be used
├── StoreError             the database
│   ├── StoreUnavailable   it does not answer: wait and try again
│   ├── SchemaMissing      outbox-relay migrate has not run
│   ├── SchemaTooNew       the database is ahead of this program
│   └── Refused            a rule of the outbox forbids it; nothing changed
└── PublisherError         the broker's client cannot be made
"""


class OutboxError(Exception):
    """Something that its reader can do something about: shown without a stack trace."""


class SettingsError(OutboxError):
    pass


class StoreError(OutboxError):
    pass


class StoreUnavailable(StoreError):
    pass


class SchemaMissing(StoreError):
    pass


class SchemaTooNew(StoreError):
    pass


class Refused(StoreError):
    pass


class PublisherError(OutboxError):
    pass
