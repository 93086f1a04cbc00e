"""Amazon SQS as an OutboxRelay has it."""

from pydantic import model_validator

from outbox_core.contract.publishers.sqs import NO_LOGIN_IN_URL, SqsBase
from outbox_operator.shared.objects import SecretKeyRef
from outbox_operator.shared.rules import Rule, Rules

BOTH_KEYS = "accessKeyIdSecretRef and secretAccessKeySecretRef go together: add the other one"


class Sqs(SqsBase):
    access_key_id_secret_ref: SecretKeyRef | None = None
    """With secretAccessKeySecretRef. Default: the pods' own identity, as AWS gives it to their
    service account by IRSA (pod.serviceAccountAnnotations) or EKS Pod Identity."""
    secret_access_key_secret_ref: SecretKeyRef | None = None
    """When it changes, relays use the new one."""
    ca_secret_ref: SecretKeyRef | None = None
    """The CA that signed the endpoint's certificate. Default: the usual public CAs."""

    @model_validator(mode="after")
    def keys_go_together(self) -> "Sqs":
        if (self.access_key_id_secret_ref is None) != (self.secret_access_key_secret_ref is None):
            raise ValueError(BOTH_KEYS)
        return self


HOLDS_ORDER = "self.publisher.sqs.queueUrl.endsWith('.fifo')"

RULES: Rules = {
    Sqs: (
        Rule("!self.queueUrl.contains('@')", NO_LOGIN_IN_URL),
        Rule("has(self.accessKeyIdSecretRef) == has(self.secretAccessKeySecretRef)", BOTH_KEYS),
    ),
}
