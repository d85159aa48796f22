// Package table reads and writes the tables whose rows are the API's objects.
package table

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/annexapi/annex"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "modernc.org/sqlite" // the driver sqlite

	v1 "example.com/sqltable/apis/orders/v1"
)

//go:embed schema.sql
var schema string

// Open opens an SQLite file and creates missing tables.
func Open(path string) (*sql.DB, error) {
	pragmas := url.Values{"_pragma": {"busy_timeout(10000)", "journal_mode(WAL)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", "file:"+path+"?"+pragmas.Encode())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if _, err := db.Exec(schema); err != nil {
		return nil, errors.Join(fmt.Errorf("make the tables of %s: %w", path, err), db.Close())
	}
	return db, nil
}

// lag bounds the delay until a change of the table is noticed.
const lag = 50 * time.Millisecond

// Orders are the rows of the table orders. Their resource version is the number of their last change.
func Orders(db *sql.DB) annex.Source[v1.Order] {
	o := orders{db}
	return annex.Source[v1.Order]{
		Get:           o.get,
		List:          o.list,
		Create:        o.create,
		Update:        o.update,
		Delete:        o.delete,
		KeepsMetadata: true,
		Changes:       o.changes,
	}
}

type orders struct{ db *sql.DB }

const columns = "SELECT namespace, name, customer, quantity, state, created, metadata, version FROM orders"

func (o orders) get(ctx context.Context, namespace, name string) (*v1.Order, error) {
	order, err := scan(o.db.QueryRowContext(ctx, columns+" WHERE namespace = ? AND name = ?", namespace, name).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, annex.ErrNotFound
	}
	return order, err
}

func (o orders) list(ctx context.Context) ([]v1.Order, error) {
	rows, err := o.db.QueryContext(ctx, columns)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []v1.Order
	for rows.Next() {
		order, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		all = append(all, *order)
	}
	return all, rows.Err()
}

func scan(row func(into ...any) error) (*v1.Order, error) {
	var o v1.Order
	var namespace, name, created, metadata string
	var version int64
	if err := row(&namespace, &name, &o.Spec.Customer, &o.Spec.Quantity, &o.Status.State, &created, &metadata, &version); err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(metadata), &o.ObjectMeta); err != nil {
		return nil, fmt.Errorf("order %s/%s: column metadata: %w", namespace, name, err)
	}
	at, err := time.Parse(time.RFC3339, created)
	if err != nil {
		return nil, fmt.Errorf("order %s/%s: column created: %w", namespace, name, err)
	}
	o.Namespace, o.Name, o.CreationTimestamp = namespace, name, metav1.NewTime(at)
	o.ResourceVersion = strconv.FormatInt(version, 10)
	return &o, nil
}

func (o orders) create(ctx context.Context, order *v1.Order) error {
	metadata, err := metadataOf(order)
	if err != nil {
		return err
	}
	state := order.Status.State
	if state == "" {
		state = "New"
	}
	// Another writer may have inserted the row before the server noticed it.
	done, err := o.db.ExecContext(
		ctx,
		"INSERT INTO orders (namespace, name, customer, quantity, state, created, metadata) VALUES (?, ?, "+
			"?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
		order.Namespace,
		order.Name,
		order.Spec.Customer,
		order.Spec.Quantity,
		state,
		order.CreationTimestamp.UTC().Format(time.RFC3339),
		metadata,
	)
	return changedOne(done, err, annex.ErrAlreadyExists)
}

func (o orders) update(ctx context.Context, order, old *v1.Order) error {
	metadata, err := metadataOf(order)
	if err != nil {
		return err
	}
	done, err := o.db.ExecContext(ctx, "UPDATE orders SET customer = ?, quantity = ?, state = ?, metadata = ? WHERE namespace = ? AND "+
		"name = ? AND version = ?",
		order.Spec.Customer, order.Spec.Quantity, order.Status.State, metadata, old.Namespace, old.Name, old.ResourceVersion)
	return changedOne(done, err, annex.ErrConflict)
}

func (o orders) delete(ctx context.Context, old *v1.Order) error {
	done, err := o.db.ExecContext(
		ctx,
		"DELETE FROM orders WHERE namespace = ? AND name = ? AND version = ?",
		old.Namespace,
		old.Name,
		old.ResourceVersion,
	)
	return changedOne(done, err, annex.ErrConflict)
}

// changedOne returns otherwise if a statement changed no row.
func changedOne(done sql.Result, err, otherwise error) error {
	if err != nil {
		return err
	}
	n, err := done.RowsAffected()
	if err != nil {
		return err
	}
	if n == 0 {
		return otherwise
	}
	return nil
}

// metadataOf returns the metadata that has no column of its own.
func metadataOf(order *v1.Order) (string, error) {
	metadata := order.ObjectMeta
	metadata.Namespace, metadata.Name, metadata.ResourceVersion, metadata.CreationTimestamp = "", "", "", metav1.Time{}
	data, err := json.Marshal(metadata)
	return string(data), err
}

// changes follows the table changes, which records the writes of all programs.
func (o orders) changes(ctx context.Context, changed func(namespace, name string)) error {
	var seen int64
	if err := o.db.QueryRowContext(ctx, "SELECT coalesce(max(seq), 0) FROM changes").Scan(&seen); err != nil {
		return err
	}
	changed("", "") // anything may have changed before
	tick := time.NewTicker(lag)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := o.since(ctx, &seen, changed); err != nil {
			return err
		}
	}
}

func (o orders) since(ctx context.Context, seen *int64, changed func(namespace, name string)) error {
	rows, err := o.db.QueryContext(ctx, "SELECT seq, namespace, name FROM changes WHERE seq > ? ORDER BY seq", *seen)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var namespace, name string
		if err := rows.Scan(seen, &namespace, &name); err != nil {
			return err
		}
		changed(namespace, name)
	}
	return rows.Err()
}

// Customers are the rows of the view customers. They are read-only, and polled because the database does not notify
// of their changes.
func Customers(db *sql.DB) annex.Source[v1.Customer] {
	read := func(ctx context.Context, query string, args ...any) ([]v1.Customer, error) {
		rows, err := db.QueryContext(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var all []v1.Customer
		for rows.Next() {
			var c v1.Customer
			if err := rows.Scan(&c.Name, &c.Orders, &c.Quantity); err != nil {
				return nil, err
			}
			all = append(all, c)
		}
		return all, rows.Err()
	}
	return annex.Source[v1.Customer]{
		Get: func(ctx context.Context, _, name string) (*v1.Customer, error) {
			found, err := read(ctx, "SELECT name, orders, quantity FROM customers WHERE name = ?", name)
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				return nil, annex.ErrNotFound
			}
			return &found[0], nil
		},
		List: func(ctx context.Context) ([]v1.Customer, error) {
			return read(ctx, "SELECT name, orders, quantity FROM customers")
		},
		Poll: time.Second,
	}
}
