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
			"Options.Kubeconfig.EphemeralToken and Options.Kubeconfig.None exclude each other: set one of them",
		)
	case o.PKCS12Password != "" && p.CertDir() == "":
		return errors.New("Options.Kubeconfig.PKCS12Password requires a directory of certificates, and the server has none")
	case !o.EphemeralToken && o.EphemeralTokenDuration != 0:
		return errors.New("Options.Kubeconfig.EphemeralTokenDuration requires Options.Kubeconfig.EphemeralToken")
	case !o.EphemeralToken:
		return nil
	case o.EphemeralTokenDuration == 0:
		o.EphemeralTokenDuration = EphemeralTokenDuration
	case o.EphemeralTokenDuration < MinEphemeralTokenDuration:
		return fmt.Errorf("Options.Kubeconfig.EphemeralTokenDuration %s is less than %s", o.EphemeralTokenDuration, MinEphemeralTokenDuration)
	}
	return nil
}
