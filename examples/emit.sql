-- An order and its event in one transaction: both are committed, or neither is.
-- psql "$OUTBOX_DSN" -f examples/emit.sql

CREATE TABLE IF NOT EXISTS shop_order (
    id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    total numeric NOT NULL
);

BEGIN;

WITH made AS (
    INSERT INTO shop_order (total) VALUES (99.50) RETURNING id, total
)
SELECT outbox.emit(
           'order.created',
           jsonb_build_object('id', id, 'total', total),
           ordering_key   => 'order-' || id,
           aggregate_type => 'Order',
           aggregate_id   => id::text,
           correlation_id => 'checkout-4711')
  FROM made;

COMMIT;
