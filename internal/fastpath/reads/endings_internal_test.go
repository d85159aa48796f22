package reads

import (
	"testing"
	"testing/synctest"
)

func TestEndings_serverStops_endsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends watchStopper
		stopping := make(chan struct{})
		ended := map[string]int{}
		watch := func(name string) *output {
			o := &output{stopping: stopping}
			ends.add(o, func() { ended[name]++ })
			return o
		}
		first := watch("first")
		ends.remove(first) // the waiting goroutine ends with it
		ends.remove(first)
		second, third := watch("second"), watch("third")
		ends.remove(third)
		synctest.Wait()
		if len(ended) > 0 {
			t.Errorf("%v have ended before", ended)
		}
		close(stopping)
		synctest.Wait()
		if len(ended) != 1 || ended["second"] != 1 {
			t.Errorf("%v have ended, want the second", ended)
		}
		ends.remove(second)
		late := watch("late")
		synctest.Wait()
		if ended["late"] == 0 {
			t.Error("one that began too late goes on")
		}
		ends.remove(late)
		ends.add(&output{}, func() { t.Error("a watch without a server that stops has ended") })
	})
}
