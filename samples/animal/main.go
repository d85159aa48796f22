// Command animal serves API groups under demo.io.
//
// +annex:domain=demo.io
package main

import (
	"github.com/annexapi/annex"
	"github.com/annexapi/annex/program"

	animalv1alpha1 "example.com/animal/apis/animal/v1alpha1"
)

func main() {
	program.Main(server())
}

// server returns the definition of the server, for the program and its tests. annex create
// api adds a line for each kind.
func server() annex.Server {
	return annex.Server{
		Name: "animal",
		Groups: []annex.Group{
			{
				Name: "animal.demo.io",
				Kinds: []annex.Kind{
					annex.KindOf[animalv1alpha1.Cat, animalv1alpha1.CatList]("cats", animalv1alpha1.API).Validate(animalv1alpha1.ValidateCat),
				},
			},
		},
	}
}
