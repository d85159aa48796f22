package audit

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/annexapi/annex/config"
	"github.com/annexapi/annex/internal/server/logfile"
)

const formatText = "text"

// CompleteAccessLog is like Complete, for the access log.
func CompleteAccessLog(o *config.AccessLogOptions) error {
	const field = "AccessLog"
	if o.Path == "" {
		return unset(field, *o, "add "+options+field+".Path")
	}
	if o.Path == "-" {
		if err := unset(field+".Rotation", o.Rotation, "standard output is not rotated"); err != nil {
			return err
		}
	}
	return oneOf(field+".Format", &o.Format, formatText, formatJSON)
}

// AccessLog writes a line for each finished request. The nil AccessLog writes nothing.
type AccessLog struct {
	format string
	lines  *logfile.Buffered
	losses *logfile.Losses
	file   io.Closer // nil for standard output
	// refused limits the lines about unauthenticated callers, who can send requests at no cost. Lines above the limit
	// are left out.
	refused flowcontrol.PassiveRateLimiter
	// leftOut is the total number of lines left out, unsaid the number since the last written line.
	leftOut, unsaid atomic.Int64
}

// The limit of lines about unauthenticated callers: per second, and burst.
const (
	refusedQPS   = 10
	refusedBurst = 100
)

// OpenAccessLog opens the file. The options must be complete. It returns nil if they have no path.
func OpenAccessLog(o config.AccessLogOptions) (*AccessLog, error) {
	if o.Path == "" {
		return nil, nil
	}
	a := &AccessLog{
		format:  o.Format,
		losses:  logfile.NewLosses("Lines of the access log"),
		refused: flowcontrol.NewTokenBucketPassiveRateLimiter(refusedQPS, refusedBurst),
	}
	var to io.Writer = os.Stdout
	if o.Path != "-" {
		file, err := logfile.Open(o.Path, o.Rotation)
		if err != nil {
			return nil, fmt.Errorf("Options.AccessLog.Path: %w", err)
		}
		a.file, to = file, file
	}
	a.lines = logfile.NewBuffered(to, a.losses)
	return a, nil
}

// Handler returns a handler that writes records as lines without waiting for the file; nil for the nil AccessLog.
// Records of level Warn are about unauthenticated callers; if there are too many, some are left out and counted.
// Control characters are escaped. The handler may be used concurrently.
func (a *AccessLog) Handler() slog.Handler {
	if a == nil {
		return nil
	}
	// Lines have no level and no message: their fields are sufficient.
	options := &slog.HandlerOptions{ReplaceAttr: func(groups []string, attr slog.Attr) slog.Attr {
		if len(groups) == 0 && (attr.Key == slog.LevelKey || attr.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return attr
	}}
	if a.format == formatJSON {
		return accessHandler{slog.NewJSONHandler(a.lines, options), a}
	}
	return accessHandler{slog.NewTextHandler(a.lines, options), a}
}

// accessHandler limits the lines about unauthenticated callers.
type accessHandler struct {
	slog.Handler
	log *AccessLog
}

func (h accessHandler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelWarn {
		if !h.log.refused.TryAccept() {
			h.log.leftOut.Add(1)
			h.log.unsaid.Add(1)
			return nil
		}
		if n := h.log.unsaid.Swap(0); n > 0 {
			record.AddAttrs(slog.Int64("leftOut", n))
		}
	}
	return h.Handler.Handle(ctx, record)
}

// Run writes lines until ctx is done, and then the remaining ones. Later lines are lost.
func (a *AccessLog) Run(ctx context.Context) {
	if a != nil {
		a.lines.Run(ctx)
	}
}

// Close closes the file. If Run is called, it must have returned.
func (a *AccessLog) Close() error {
	if a == nil {
		return nil
	}
	a.losses.Report()
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}

// Metrics returns the metrics of the access log; nil for the nil AccessLog.
func (a *AccessLog) Metrics() []prometheus.Collector {
	if a == nil {
		return nil
	}
	return []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "annex_access_log_lost_lines_total",
			Help: "Lines of the access log that could not be written.",
		}, func() float64 { return float64(a.losses.Total()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "annex_access_log_left_out_lines_total",
			Help: "Lines that the access log omitted because of too many unauthenticated requests.",
		}, func() float64 { return float64(a.leftOut.Load()) }),
	}
}
