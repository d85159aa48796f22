package main

import (
	"math/rand"
	"os"
	"strconv"
	"testing"

	"github.com/annexapi/annex/annextest"

	restaurantv1beta1 "example.com/restaurant/apis/restaurant/v1beta1"
)

// asProgram makes the test binary run as the program itself, so that tests can kill it.
const asProgram = "RESTAURANT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// Each version can represent the values of all others, exactly.
func TestVersionsRoundTrip(t *testing.T) {
	annextest.RoundTrip(t, server(newExtensions()), valid)
}

// stored is the folder of stored objects, which make golden creates.
const stored = "testdata/stored"

func TestStoredObjects_stayReadable(t *testing.T) {
	if _, err := os.Stat(stored); err != nil {
		t.Skip("no objects are kept yet: make golden")
	}
	annextest.GoldenObjects(t, server(newExtensions()), stored, valid)
}

// valid generates specs with unique names and quantities from 1 to 100.
var valid = annextest.Fuzz(func(spec *restaurantv1beta1.PizzaSpec, r *rand.Rand) {
	spec.Toppings = nil
	for i := range 1 + r.Intn(20) {
		spec.Toppings = append(
			spec.Toppings,
			restaurantv1beta1.PizzaTopping{Name: "t" + strconv.Itoa(i), Quantity: int32(1 + r.Intn(restaurantv1beta1.MaxQuantity))},
		)
	}
	r.Shuffle(len(spec.Toppings), func(i, j int) { spec.Toppings[i], spec.Toppings[j] = spec.Toppings[j], spec.Toppings[i] })
})
