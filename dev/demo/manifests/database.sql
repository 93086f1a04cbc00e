-- The shop's database. The outbox itself is made by the relay, which owns its schema.
CREATE ROLE outbox_producer; CREATE ROLE outbox_relay; CREATE ROLE outbox_reader;
CREATE ROLE relay LOGIN PASSWORD 'only-for-this-demo';
GRANT CREATE ON DATABASE shop TO relay;

-- The shop may add events, and neither read nor change any.
CREATE ROLE shop LOGIN PASSWORD 'only-for-this-demo' IN ROLE outbox_producer;
CREATE TABLE orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    total    numeric NOT NULL
);
GRANT SELECT, INSERT ON orders TO shop;

-- Billing knows of an order by its event only. It has no right to read the shop's tables.
CREATE ROLE billing LOGIN PASSWORD 'only-for-this-demo';
CREATE TABLE invoices (
    order_id bigint PRIMARY KEY,
    customer text NOT NULL,
    arrived  bigint GENERATED ALWAYS AS IDENTITY,
    events   integer NOT NULL DEFAULT 1  -- how often the order's event arrived
);
GRANT SELECT, INSERT, UPDATE ON invoices TO billing;

CREATE VIEW account AS
SELECT (SELECT count(*) FROM orders) AS orders,
       (SELECT count(*) FROM invoices) AS invoices,
       (SELECT count(*) FROM orders o
         WHERE NOT EXISTS (SELECT FROM invoices i WHERE i.order_id = o.id)) AS lost,
       (SELECT count(*) FROM invoices i
         WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = i.order_id)) AS invented,
       (SELECT coalesce(sum(events - 1), 0) FROM invoices) AS repeated,
       -- One shop commits one order after another: a customer's numbers grow as commits do.
       (SELECT count(*) FROM (
            SELECT order_id < lag(order_id) OVER (PARTITION BY customer ORDER BY arrived) AS late
              FROM invoices) AS arrival
         WHERE late) AS disordered;
