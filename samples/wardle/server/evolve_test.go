package server_test

import (
	"math/rand"
	"testing"

	"example.com/wardle/apis/wardle/v1beta1"
	"example.com/wardle/server"
	"github.com/annexapi/annex/annextest"
)

func TestVersions_roundTrip(t *testing.T) {
	annextest.RoundTrip(t, server.New(), sensible)
}

func TestStoredObjects_stayReadable(t *testing.T) {
	annextest.GoldenObjects(t, server.New(), "testdata/objects", sensible)
}

// sensible generates references to either a flunder or a fischer.
var sensible = annextest.Fuzz(func(spec *v1beta1.FlunderSpec, r *rand.Rand) {
	switch r.Intn(3) {
	case 0:
		*spec = v1beta1.FlunderSpec{FlunderReference: spec.FlunderReference, ReferenceType: v1beta1.FlunderReferenceType}
	case 1:
		*spec = v1beta1.FlunderSpec{FischerReference: spec.FischerReference, ReferenceType: v1beta1.FischerReferenceType}
	}
})
