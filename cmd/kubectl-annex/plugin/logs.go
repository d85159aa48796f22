package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/metadata"
)

type logsFlags struct {
	selector, container, sinceTime string
	follow, previous, timestamps   bool
	prefix                         bool
	since                          time.Duration
	tail, limitBytes               int64
	maxRequests                    int
}

func (p *plugin) newLogs() *cobra.Command {
	var given logsFlags
	cmd := &cobra.Command{
		Use:   "logs (KIND/NAME | KIND -l SELECTOR)",
		Short: "Print the log of an object",
		Long: `Prints the log of an object, or of all objects that a selector selects, one after the other. With --follow, the verb
prints lines of several objects as they arrive, and each line begins with the name of its object.`,
		Example: `  ` + p.called() + ` logs runner/x -f --tail=20
  ` + p.called() + ` logs runners -l app=build --since=1h`,
		ValidArgsFunction: p.completeObjects(hasRole(roleLogs)),
		RunE: func(cmd *cobra.Command, words []string) error {
			parameters, err := given.parameters(cmd)
			if err != nil {
				return err
			}
			if given.selector == "" {
				o, err := p.object(words, string(roleLogs), hasRole(roleLogs))
				if err != nil {
					return err
				}
				return p.log(cmd.Context(), o, parameters, p.lines(o, given.prefix))
			}
			return p.selectedLogs(cmd, words, given, parameters)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&given.follow, "follow", "f", false, "go on as the log grows")
	flags.BoolVarP(&given.previous, "previous", "p", false, "print the log of the previous run")
	flags.StringVarP(&given.container, "container", "c", "", "container, for objects with several containers")
	flags.Int64Var(&given.tail, "tail", -1, "number of lines from the end of the log to print first; -1 prints all, or 10 with a selector")
	flags.DurationVar(&given.since, "since", 0, "print lines newer than a duration such as 5s, 2m or 3h; 0 prints all")
	flags.StringVar(&given.sinceTime, "since-time", "", "print lines newer than a time, such as 2026-01-02T15:04:05Z")
	flags.BoolVar(&given.timestamps, "timestamps", false, "begin each line with its time")
	flags.Int64Var(&given.limitBytes, "limit-bytes", 0, "maximum number of bytes of each log; 0 sets no limit")
	flags.StringVarP(&given.selector, "selector", "l", "", "print the logs of all objects with these labels, as in app=build")
	flags.BoolVar(&given.prefix, "prefix", false, "begin each line with the object's name; always on if several logs are followed")
	flags.IntVar(&given.maxRequests, "max-log-requests", 5, "with a selector: maximum number of logs to follow at once")
	return cmd
}

// parameters returns the query parameters of the request.
func (f *logsFlags) parameters(cmd *cobra.Command) (map[string]string, error) {
	parameters := map[string]string{}
	set := func(name string, is bool, value string) {
		if is {
			parameters[name] = value
		}
	}
	tail := f.tail
	if f.selector != "" && !cmd.Flags().Changed("tail") {
		tail = 10
	}
	switch {
	case tail < -1:
		return nil, misuse("--tail %d: use a number of lines, or -1 for all", tail)
	case f.since != 0 && f.sinceTime != "":
		return nil, misuse("--since and --since-time exclude each other")
	case f.since < 0:
		return nil, misuse("--since %s: the duration must not be negative", f.since)
	case f.limitBytes < 0:
		return nil, misuse("--limit-bytes %d: the number must not be negative", f.limitBytes)
	case f.maxRequests < 1:
		return nil, misuse("--max-log-requests %d: the number must be at least 1", f.maxRequests)
	}
	if f.sinceTime != "" {
		if _, err := time.Parse(time.RFC3339, f.sinceTime); err != nil {
			return nil, misuse("--since-time %q: use a time such as 2026-01-02T15:04:05Z", f.sinceTime)
		}
	}
	set("follow", f.follow, "true")
	set("previous", f.previous, "true")
	set("timestamps", f.timestamps, "true")
	set("container", f.container != "", f.container)
	set("tailLines", tail >= 0, strconv.FormatInt(tail, 10))
	set("sinceSeconds", f.since > 0, strconv.FormatInt(int64(math.Ceil(f.since.Seconds())), 10))
	set("sinceTime", f.sinceTime != "", f.sinceTime)
	set("limitBytes", f.limitBytes > 0, strconv.FormatInt(f.limitBytes, 10))
	return parameters, nil
}

// selectedLogs prints the logs of all objects that match the selector.
func (p *plugin) selectedLogs(cmd *cobra.Command, words []string, given logsFlags, parameters map[string]string) error {
	if len(words) != 1 {
		return misuse("with a selector, pass a kind without an object")
	}
	if _, err := labels.Parse(given.selector); err != nil {
		return misuse("--selector: %w", err)
	}
	r, err := p.find(words[0], string(roleLogs), hasRole(roleLogs))
	if err != nil {
		return err
	}
	config, err := p.config.ToRESTConfig()
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace := ""
	if r.namespaced {
		if namespace, _, err = p.config.ToRawKubeConfigLoader().Namespace(); err != nil {
			return err
		}
	}
	list, err := client.Resource(r.GroupVersionResource).
		Namespace(namespace).
		List(cmd.Context(), metav1.ListOptions{LabelSelector: given.selector})
	if err != nil {
		return err
	}
	switch n := len(list.Items); {
	case n == 0:
		fmt.Fprintf(p.ErrOut, "No %s with the labels %s%s found.\n", r.full(), given.selector, p.inNamespace(object{namespace: namespace}))
		return nil
	case given.follow && n > given.maxRequests:
		return misuse("%d %s match the selector, more than --max-log-requests=%d: raise the limit, or "+
			"select fewer", n, r.full(), given.maxRequests)
	}
	if !given.follow {
		for _, item := range list.Items {
			o := object{r, item.Namespace, item.Name}
			if err := p.log(cmd.Context(), o, parameters, p.lines(o, given.prefix)); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	var running sync.WaitGroup
	var out sync.Mutex
	failed := make([]error, len(list.Items))
	for i, item := range list.Items {
		o := object{r, item.Namespace, item.Name}
		running.Go(func() {
			failed[i] = p.log(ctx, o, parameters, func(log io.Reader) error {
				return eachLine(log, func(line []byte) error {
					out.Lock()
					defer out.Unlock()
					_, err := fmt.Fprintf(p.Out, "[%s] %s", o, line)
					return err
				})
			})
			if failed[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	for _, err := range failed {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return cmd.Context().Err()
}

// log requests a log, and passes it to write.
func (p *plugin) log(ctx context.Context, o object, parameters map[string]string, write func(io.Reader) error) error {
	client, err := p.server.client()
	if err != nil {
		return err
	}
	request := client.Get().AbsPath(o.path(o.with(roleLogs).name)...)
	for name, value := range parameters {
		request.Param(name, value)
	}
	stream, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	if err := write(stream); err != nil {
		return fmt.Errorf("read the log of %s: %w", o, err)
	}
	return nil
}

// lines returns a function that copies a log to standard output.
func (p *plugin) lines(o object, prefix bool) func(io.Reader) error {
	if !prefix {
		return func(log io.Reader) error {
			_, err := io.Copy(p.Out, log)
			return err
		}
	}
	return func(log io.Reader) error {
		return eachLine(log, func(line []byte) error {
			_, err := fmt.Fprintf(p.Out, "[%s] %s", o, line)
			return err
		})
	}
}

// eachLine calls do with each line of any length, including its newline.
func eachLine(log io.Reader, do func([]byte) error) error {
	for reader := bufio.NewReader(log); ; {
		line, err := reader.ReadBytes('\n')
		if len(line) > 0 {
			if line[len(line)-1] != '\n' {
				line = append(line, '\n')
			}
			if err := do(line); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
