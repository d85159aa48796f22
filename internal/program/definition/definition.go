// Package definition carries a compiled definition from package annex to the packages that plan, serve and describe
// it. It adds the types to define.Server that need a running server, of which package define must not know.
package definition

import (
	"k8s.io/client-go/rest"

	"github.com/annexapi/annex/internal/model/define"
	"github.com/annexapi/annex/internal/model/informer"
)

// EnvFunc makes the environment that a server's hooks and controllers get. The environment's type is package
// annex's, which this package does not import. The definition is the served one, including the kinds of the mode.
type EnvFunc func(definition *define.Server, client *rest.Config, informers *informer.Set, rootCA func() []byte) any

// Definition is a compiled and checked definition, with the constructor of its environments.
type Definition struct {
	Server *define.Server
	// ControlPlane opens the control plane that Server.Plane declares; nil if Server.Plane is nil.
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
