package plan

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/annexapi/annex/config"
)

const (
	// maxStreams keeps upstream's buffers for one connection, 256 KiB a stream, below 2 GiB.
	maxStreams = 8191
	// maxGoawayChance is upstream's bound.
	maxGoawayChance = 0.02
)

// completeServing fills in defaults and returns the first mistake.
func completeServing(o *config.ServingOptions) error {
	for _, step := range []func(*config.ServingOptions) error{completeTLS, completeHTTP} {
		if err := step(o); err != nil {
			return err
		}
	}
	if o.ContentionProfiling && !o.Profiling {
		return errors.New("Options.Serving.ContentionProfiling has no effect without Options.Serving.Profiling")
	}
	// Upstream's defaults.
	if o.MaxRequestsInFlight == 0 {
		o.MaxRequestsInFlight = 400
	}
	if o.MaxMutatingRequestsInFlight == 0 {
		o.MaxMutatingRequestsInFlight = 200
	}
	return nil
}

// tlsVersions are the supported versions. Upstream also accepts older ones, which are insecure.
var tlsVersions = []string{"VersionTLS12", "VersionTLS13"}

// http2Ciphers are the cipher suites of which an HTTP/2 server must support one with TLS 1.2.
var http2Ciphers = []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}

func isHTTP2s(cipher string) bool { return slices.Contains(http2Ciphers, cipher) }

func completeTLS(o *config.ServingOptions) error {
	if o.MinTLSVersion == "" {
		o.MinTLSVersion = tlsVersions[0]
	}
	if !slices.Contains(tlsVersions, o.MinTLSVersion) {
		return fmt.Errorf("Options.Serving.MinTLSVersion %q: choose %s", o.MinTLSVersion, strings.Join(tlsVersions, " or "))
	}
	for _, name := range o.CipherSuites {
		if !slices.Contains(cliflag.TLSCipherPossibleValues(), name) {
			return fmt.Errorf("Options.Serving.CipherSuites %q: use %s; insecure: %s", name,
				strings.Join(cliflag.PreferredTLSCipherNames(), ", "), strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
		}
	}
	if len(o.CipherSuites) > 0 && !o.DisableHTTP2 && o.MinTLSVersion == tlsVersions[0] && !slices.ContainsFunc(o.CipherSuites, isHTTP2s) {
		return fmt.Errorf(
			"Options.Serving.CipherSuites: HTTP/2 needs %s: add one of them, or Options.Serving.DisableHTTP2",
			strings.Join(http2Ciphers, " or "),
		)
	}
	if _, err := cliflag.TLSCurvePreferences(o.CurvePreferences); err != nil {
		return fmt.Errorf("Options.Serving.CurvePreferences: %w", err)
	}
	for _, c := range o.SNICertificates {
		if c.CertFile == "" || c.KeyFile == "" {
			return fmt.Errorf(
				"Options.Serving.SNICertificates: certificate file %q and key file %q must be set together",
				c.CertFile,
				c.KeyFile,
			)
		}
		for _, name := range c.Names {
			if net.ParseIP(name) == nil && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*."))) > 0 {
				return fmt.Errorf("Options.Serving.SNICertificates %s: %q is neither a host name nor an IP address", c.CertFile, name)
			}
		}
	}
	return nil
}

func completeHTTP(o *config.ServingOptions) error {
	switch {
	case o.MaxStreamsPerConnection == 0:
		o.MaxStreamsPerConnection = 1000 // high, because an aggregator sends the requests of all its clients over one connection
	case o.MaxStreamsPerConnection < 0 || o.MaxStreamsPerConnection > maxStreams:
		return fmt.Errorf("Options.Serving.MaxStreamsPerConnection %d is not between 1 and %d", o.MaxStreamsPerConnection, maxStreams)
	}
	if !(o.GoawayChance >= 0 && o.GoawayChance <= maxGoawayChance) {
		return fmt.Errorf("Options.Serving.GoawayChance %v is not between 0 and %v", o.GoawayChance, maxGoawayChance)
	}
	for _, name := range o.RefusedUserAgents {
		if name == "" || strings.ContainsAny(name, "/ ") {
			return fmt.Errorf(
				"Options.Serving.RefusedUserAgents %q is not the name of a program, such as kubectl: remove everything from the first "+
					"slash or space",
				name,
			)
		}
	}
	for _, pattern := range o.AllowedOrigins {
		if _, err := regexp.Compile(pattern); err != nil || pattern == "" {
			return fmt.Errorf("Options.Serving.AllowedOrigins %q is not a regular expression for origins, such as "+
				"//example\\.com(:|$)", pattern)
		}
		begins, ends := strings.Contains(pattern, "^") || strings.Contains(pattern, "//"), strings.ContainsAny(pattern, "$:")
		if !begins || !ends {
			return fmt.Errorf("Options.Serving.AllowedOrigins %q matches other hosts as well: mark the start of the host with ^ or //, "+
				"and its end with $ or :, as in //example\\.com(:|$)", pattern)
		}
	}
	for _, directive := range o.StrictTransportSecurity {
		age, given := strings.CutPrefix(directive, "max-age=")
		if _, err := strconv.ParseUint(age, 10, 63); given && err == nil || directive == "includeSubDomains" || directive == "preload" {
			continue
		}
		return fmt.Errorf("Options.Serving.StrictTransportSecurity %q: use max-age=SECONDS, includeSubDomains and preload", directive)
	}
	return completeExternalHostname(o.ExternalHostname)
}

func completeExternalHostname(name string) error {
	if name == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		host, port = name, "443"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || net.ParseIP(host) == nil && len(validation.IsDNS1123Subdomain(host)) > 0 {
		return fmt.Errorf("Options.Serving.ExternalHostname %q is not a host name, with or without a port", name)
	}
	return nil
}
