// Package definition is how a compiled definition gets from package annex to the packages that plan, serve and
// describe it: what they need beside define.Server, whose package knows neither servers nor programs.
package definition

import (
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
)

// EnvFunc makes the handle to a server that its hooks and controllers get. The handle's type is package annex's,
// which this package does not know. The definition is the one that is served, with the kinds of its mode.
type EnvFunc func(definition *define.Server, client *rest.Config, informers *informer.Set, rootCA func() []byte) any

// Definition is a compiled and checked definition, and how its environments are made.
type Definition struct {
	Server *define.Server
	// ControlPlane opens what Server.Plane declares; nil if that is nil.
	ControlPlane ControlPlane
	NewEnv       EnvFunc
}

// Compiled holds a Definition for package annex, whose exported type embeds it under a name that is not exported. Only
// the module's own packages can call Of, so the exported type needs no exported method for package program.
type Compiled struct{ definition Definition }

// Compile returns a holder of the definition.
func Compile(definition Definition) Compiled { return Compiled{definition} }

func (c *Compiled) compiled() *Definition { return &c.definition }

// Of returns the definition that a type of package annex holds.
func Of(holder interface{ compiled() *Definition }) *Definition { return holder.compiled() }
