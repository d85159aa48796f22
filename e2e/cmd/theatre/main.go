// Command theatre is a server with kinds that cover features missing from the samples.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/annexapi/annex"
	v1 "github.com/annexapi/annex/e2e/apis/theatre/v1"
	"github.com/annexapi/annex/e2e/shell"
	"github.com/annexapi/annex/operation"
	"github.com/annexapi/annex/program"
	"github.com/annexapi/annex/stream"
)

func main() {
	program.Main(annex.Server{
		Name: "theatre",
		Groups: []annex.Group{{
			Name: "theatre.example.com",
			Kinds: []annex.Kind{
				annex.KindOf[v1.Play, v1.PlayList]("plays", v1.API).
					Categories("all").
					Scale(".spec.replicas", ".status.replicas", ".status.selector").
					Validate(v1.ValidatePlay).
					Warn(shortTitle).
					Subresources(
						operation.Action("rehearse", perform),
						operation.Action("perform", perform).Resumable(),
					).
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
				annex.KindOf[v1.Hall, v1.HallList]("halls", v1.API).
					Subresources(
						stream.Exec("exec", shell.Exec[v1.Hall]),
						stream.Attach("attach", shell.Attach[v1.Hall]),
						stream.Logs("log", shell.Log[v1.Hall]).Containers(func(*v1.Hall) []string { return []string{"lights", "sound"} }),
						stream.PortForward("portforward", shell.Dial[v1.Hall]),
						stream.Proxy("proxy", boxOffice),
					).
					AdmitConnect(notWhileClosed),
				operation.Kind(v1.API, operation.Options{LeaseDuration: 3 * time.Second}),
			},
		}},
	})
}

func boxOffice(_ context.Context, r *stream.ProxyRequest[v1.Hall]) (*stream.Backend, error) {
	box, err := url.Parse(r.Object.Box)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("box of %s: %v", r.Name, err))
	}
	return &stream.Backend{URL: box}, nil
}

func notWhileClosed(_ context.Context, c annex.Connection[v1.Hall]) error {
	if c.Subresource == "exec" && c.Object.Labels["closed"] != "" {
		return errors.New("the hall is closed")
	}
	return nil
}

// Applause is the result of a performance.
type Applause struct {
	Acts int64 `json:"acts"`
}

// perform plays one act after the other, from the first unplayed one.
func perform(ctx context.Context, run *operation.Run[v1.Play, v1.Performance]) (*Applause, error) {
	var act int64
	if _, err := run.Restore(&act); err != nil {
		return nil, err
	}
	run.Unit("acts")
	for ; act < run.Object.Acts; act++ {
		run.Progress(act, run.Object.Acts)
		if err := run.Save(act); err != nil {
			return nil, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("in act %d: %w", act+1, context.Cause(ctx))
		}
	}
	return &Applause{act}, nil
}

func shortTitle(_ context.Context, play *v1.Play) []string {
	if len(play.Spec.Title) == 1 {
		return []string{"spec.title: one letter is hard to read from afar"}
	}
	return nil
}
