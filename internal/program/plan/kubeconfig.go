package plan

import (
	"errors"
	"fmt"
	"time"
)

const (
	// EphemeralTokenDuration is the default lifetime of tokens in kubeconfigs.
	EphemeralTokenDuration = 12 * time.Hour
	// MinEphemeralTokenDuration leaves clients enough time to use a token.
	MinEphemeralTokenDuration = time.Minute
)

// completeKubeconfig fills in defaults and returns the first mistake.
func (p *Plan) completeKubeconfig() error {
	o := &p.Options.Kubeconfig
	switch {
	case o.None && o.EphemeralToken:
		return errors.New(
			"Options.Kubeconfig.EphemeralToken is for the kubeconfig that Options.Kubeconfig.None does not write: give one of them",
		)
	case o.PKCS12Password != "" && p.CertDir() == "":
		return errors.New("Options.Kubeconfig.PKCS12Password needs a directory that holds certificates, and there is none")
	case !o.EphemeralToken && o.EphemeralTokenDuration != 0:
		return errors.New("Options.Kubeconfig.EphemeralTokenDuration is for Options.Kubeconfig.EphemeralToken")
	case !o.EphemeralToken:
		return nil
	case o.EphemeralTokenDuration == 0:
		o.EphemeralTokenDuration = EphemeralTokenDuration
	case o.EphemeralTokenDuration < MinEphemeralTokenDuration:
		return fmt.Errorf("Options.Kubeconfig.EphemeralTokenDuration %s is less than %s", o.EphemeralTokenDuration, MinEphemeralTokenDuration)
	}
	return nil
}
