// Command sqltable serves the rows of a table as Kubernetes objects. The table is in the SQLite file in the
// environment variable SQLTABLE, by default orders.db in this folder.
package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/annexapi/annex/program"

	"example.com/sqltable/server"
	"example.com/sqltable/table"
)

func main() {
	db, err := table.Open(cmp.Or(os.Getenv("SQLTABLE"), "orders.db"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "sqltable:", err)
		os.Exit(1)
	}
	program.Main(server.New(db))
}
