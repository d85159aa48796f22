-- The table is the owner of the orders; the API server is one of its users.
CREATE TABLE IF NOT EXISTS orders (
	namespace TEXT    NOT NULL DEFAULT 'default',
	name      TEXT    NOT NULL,
	customer  TEXT    NOT NULL,
	quantity  INTEGER NOT NULL CHECK (quantity > 0),
	state     TEXT    NOT NULL DEFAULT 'New',
	created   TEXT    NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')),
	metadata  TEXT    NOT NULL DEFAULT '{}', -- labels and what else the API keeps, as JSON
	version   INTEGER NOT NULL DEFAULT 0,    -- the last change of the row
	PRIMARY KEY (namespace, name)
);

-- Every change has a number, also that of a row which is gone.
CREATE TABLE IF NOT EXISTS changes (
	seq       INTEGER PRIMARY KEY AUTOINCREMENT,
	namespace TEXT NOT NULL,
	name      TEXT NOT NULL
);

CREATE TRIGGER IF NOT EXISTS orders_insert AFTER INSERT ON orders BEGIN
	INSERT INTO changes (namespace, name) VALUES (NEW.namespace, NEW.name);
	UPDATE orders SET version = (SELECT max(seq) FROM changes) WHERE namespace = NEW.namespace AND name = NEW.name;
END;

CREATE TRIGGER IF NOT EXISTS orders_update AFTER UPDATE OF namespace, name, customer, quantity, state, created, metadata ON orders BEGIN
	INSERT INTO changes (namespace, name) VALUES (OLD.namespace, OLD.name), (NEW.namespace, NEW.name);
	UPDATE orders SET version = (SELECT max(seq) FROM changes) WHERE namespace = NEW.namespace AND name = NEW.name;
END;

CREATE TRIGGER IF NOT EXISTS orders_delete AFTER DELETE ON orders BEGIN
	INSERT INTO changes (namespace, name) VALUES (OLD.namespace, OLD.name);
END;

CREATE VIEW IF NOT EXISTS customers AS
	SELECT customer AS name, count(*) AS orders, sum(quantity) AS quantity FROM orders GROUP BY customer;
