// Command theatre is a server with kinds that use what the samples do not.
package main

import (
	"context"
	"time"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/e2e/apis/theatre/v1"
)

func main() {
	annex.Main(annex.Server{
		Name: "theatre",
		Groups: []annex.Group{{
			Name: "theatre.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[v1.Play, v1.PlayList]("plays", v1.API).
					Categories("all").
					Scale(".spec.replicas", ".status.replicas", ".status.selector").
					Validate(v1.ValidatePlay).
					Warn(shortTitle).
					Columns(
						annex.Column[v1.Play]{Name: "Title", Value: func(p *v1.Play) any { return p.Spec.Title }},
						annex.Column[v1.Play]{Name: "Replicas", Type: "integer", Value: func(p *v1.Play) any { return p.Spec.Replicas }},
						annex.Column[v1.Play]{Name: "Roles", Type: "integer", Wide: true, Value: func(p *v1.Play) any { return len(p.Spec.Roles) }},
					),
				annex.KindOf[v1.Guest, v1.GuestList]("guests", v1.API).
					ShortNames("gu").
					GracePeriod(time.Hour),
				annex.KindOf[v1.Curtain, v1.CurtainList]("curtains", v1.API).
					ClusterScoped().
					GracePeriod(time.Second).
					DeleteAfterGracePeriod(),
			},
		}},
	})
}

func shortTitle(_ context.Context, play *v1.Play) []string {
	if len(play.Spec.Title) == 1 {
		return []string{"spec.title: one letter is hard to read from afar"}
	}
	return nil
}
