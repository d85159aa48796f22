package v1alpha1

import (
	"math/rand"
	"slices"
	"testing"

	"example.com/restaurant/apis/restaurant/v1beta1"
)

// normal returns the toppings with all repeats behind the first.
func normal(toppings []string) []string {
	var names, all []string
	count := map[string]int{}
	for _, name := range toppings {
		if count[name] == 0 {
			names = append(names, name)
		}
		count[name]++
	}
	for _, name := range names {
		all = append(all, slices.Repeat([]string{name}, count[name])...)
	}
	return all
}

func TestPizza_roundTrip_isNormal(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewSource(1))
	for range 2000 {
		in := &Pizza{}
		for range r.Intn(90) {
			in.Spec.Toppings = append(in.Spec.Toppings, string(rune('a'+r.Intn(8))))
		}
		hub, out := &v1beta1.Pizza{}, &Pizza{}
		if err := PizzaToHub(in, hub); err != nil {
			t.Fatal(err)
		}
		if err := PizzaFromHub(hub, out); err != nil {
			t.Fatal(err)
		}
		if want := normal(in.Spec.Toppings); !slices.Equal(out.Spec.Toppings, want) {
			t.Fatalf("%v came back as %v, want %v", in.Spec.Toppings, out.Spec.Toppings, want)
		}
		again := &v1beta1.Pizza{}
		if err := PizzaToHub(out, again); err != nil || !slices.Equal(again.Spec.Toppings, hub.Spec.Toppings) {
			t.Fatalf("the hub %v came back as %v, %v", hub.Spec.Toppings, again.Spec.Toppings, err)
		}
	}
}

func TestPizzaFromHub_unrepresentable_fails(t *testing.T) {
	t.Parallel()
	for name, toppings := range map[string][]v1beta1.PizzaTopping{
		"none of it":  {{Name: "a", Quantity: 0}},
		"less":        {{Name: "a", Quantity: -1}},
		"too much":    {{Name: "a", Quantity: 101}},
		"far too":     {{Name: "a", Quantity: 1<<31 - 1}},
		"two entries": {{Name: "a", Quantity: 1}, {Name: "a", Quantity: 1}},
	} {
		if err := PizzaFromHub(&v1beta1.Pizza{Spec: v1beta1.PizzaSpec{Toppings: toppings}}, &Pizza{}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
