package upstream
import ("testing";"strings";"os")
func TestZZ(t *testing.T){ os.WriteFile("/tmp/filters.txt",[]byte("Filters: "+strings.Join(Filters(),", ")+"\n"),0o644) }
