package main

import (
	"github.com/annexapi/annex"
	"github.com/annexapi/annex/program"

	v1 "example.com/guestbook/api/v1"
)

func main() { program.Main(server()) }

func server() annex.Server {
	return annex.Server{
		Name: "guestbook",
		Groups: []annex.Group{{
			Name: "webapp.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[v1.Guestbook, v1.GuestbookList]("guestbooks", v1.API),
			},
		}},
	}
}
