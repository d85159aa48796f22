package plan

import (
	"math"
	"strings"
	"testing"

	"github.com/annexapi/annex/config"
)

func TestCompleteServing_mistakes(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]config.ServingOptions{
		`Options.Serving.MinTLSVersion "1.3": choose VersionTLS12 or VersionTLS13`: {MinTLSVersion: "1.3"},
		`Options.Serving.MinTLSVersion "VersionTLS10": choose`:                     {MinTLSVersion: "VersionTLS10"},
		`Options.Serving.CipherSuites "AES": use `:                                 {CipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "AES"}},
		"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384":                                    {CipherSuites: []string{"AES"}},
		"Options.Serving.CipherSuites: HTTP/2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256: add " +
			"one of them, or Options.Serving.DisableHTTP2": {CipherSuites: []string{"TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"}},
		"Options.Serving.CurvePreferences: curve preference 5 is not " +
			"supported": {CurvePreferences: []int32{5}},
		`Options.Serving.SNICertificates: certificate file "a.crt" and key file "" must be set together`: {SNICertificates: []config.SNICertificate{{CertFile: "a.crt"}}},
		`Options.Serving.SNICertificates a.crt: "a_b" is neither a host name nor an IP address`:          {SNICertificates: []config.SNICertificate{{CertFile: "a.crt", KeyFile: "a.key", Names: []string{"*.example.com", "::1", "a_b"}}}},
		"Options.Serving.MaxStreamsPerConnection -1 is not between 1 " +
			"and 8191": {MaxStreamsPerConnection: -1},
		"Options.Serving.MaxStreamsPerConnection 8192 is not between 1 " +
			"and 8191": {MaxStreamsPerConnection: 8192},
		"Options.Serving.GoawayChance 0.5 is not between 0 and 0.02":                                             {GoawayChance: 0.5},
		"Options.Serving.GoawayChance -0.01 is not":                                                              {GoawayChance: -0.01},
		"Options.Serving.GoawayChance NaN is not":                                                                {GoawayChance: math.NaN()},
		`Options.Serving.AllowedOrigins "//(" is not a regular expression for origins`:                           {AllowedOrigins: []string{"//("}},
		`Options.Serving.AllowedOrigins "" is not a regular expression`:                                          {AllowedOrigins: []string{""}},
		`Options.Serving.AllowedOrigins "//example\\.com" matches other hosts as well`:                           {AllowedOrigins: []string{`//example\.com`}},
		`Options.Serving.AllowedOrigins "example\\.com$" matches other hosts as well`:                            {AllowedOrigins: []string{`example\.com$`}},
		`Options.Serving.StrictTransportSecurity "maxage=3": use`:                                                {StrictTransportSecurity: []string{"maxage=3"}},
		`Options.Serving.StrictTransportSecurity "max-age=": use max-age=SECONDS, includeSubDomains and preload`: {StrictTransportSecurity: []string{"preload", "max-age="}},
		`Options.Serving.StrictTransportSecurity "max-age=a year": use`:                                          {StrictTransportSecurity: []string{"max-age=a year"}},
		`Options.Serving.StrictTransportSecurity "": use`:                                                        {StrictTransportSecurity: []string{""}},
		`Options.Serving.ExternalHostname "https://example.com" is not a host name, with or without a port`:      {ExternalHostname: "https://example.com"},
		`Options.Serving.ExternalHostname "example.com:0" is not a host name, with or without a port`:            {ExternalHostname: "example.com:0"},
		`Options.Serving.ExternalHostname "example.com:https" is not a host name, with or without a port`:        {ExternalHostname: "example.com:https"},
		"Options.Serving.ContentionProfiling has no effect without Options.Serving.Profiling":                    {ContentionProfiling: true},
	} {
		if err := completeServing(&o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}

func TestCompleteServing_defaults(t *testing.T) {
	t.Parallel()
	var o config.ServingOptions
	if err := completeServing(
		&o,
	); err != nil || o.MinTLSVersion != "VersionTLS12" || o.MaxStreamsPerConnection != 1000 || o.MaxRequestsInFlight != 400 ||
		o.MaxMutatingRequestsInFlight != 200 {
		t.Errorf("%+v, %v", o, err)
	}
	o = config.ServingOptions{
		MinTLSVersion:    "VersionTLS13",
		CipherSuites:     []string{"TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_RSA_WITH_RC4_128_SHA"},
		CurvePreferences: []int32{29, 4588},
		SNICertificates: []config.SNICertificate{
			{CertFile: "a", KeyFile: "b", Names: []string{"*.example.com", "example.com", "192.0.2.1"}},
		},
		MaxStreamsPerConnection: 1,
		GoawayChance:            0.02,
		AllowedOrigins: []string{
			`//example\.com(:|$)`,
			`^https://example\.com(:|$)`,
		},
		StrictTransportSecurity:     []string{"max-age=31536000", "includeSubDomains", "preload"},
		ExternalHostname:            "api.example.com:443",
		MaxRequestsInFlight:         -1,
		MaxMutatingRequestsInFlight: 7,
		Profiling:                   true,
		ContentionProfiling:         true,
	}
	if err := completeServing(&o); err != nil || o.MaxRequestsInFlight != -1 || o.MaxMutatingRequestsInFlight != 7 {
		t.Errorf("%+v, %v", o, err)
	}
}
