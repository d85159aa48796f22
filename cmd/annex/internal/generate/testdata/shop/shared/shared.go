// Package shared holds types that both versions of the shop use.
//
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
package shared

// DefaultCountry is where things come from.
const DefaultCountry = "AU"

// Address is where something goes.
type Address struct {
	Lines []string `json:"lines,omitempty"`

	// Country is where the lines end.
	// +default="NZ"
	Country string `json:"country,omitempty"`
}
