package audit

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/annexapi/annex/config"
)

// The modes and formats, with upstream's names.
const (
	modeBatch    = "batch"
	modeBlocking = "blocking"
	modeStrict   = "blocking-strict"

	formatJSON   = "json"
	formatLegacy = "legacy"
)

// Enabled reports whether the options record anything.
func Enabled(o config.AuditOptions) bool { return o.Log.Path != "" || o.Webhook.ConfigFile != "" }

// Complete fills in defaults. It reports an error for the first mistake.
func Complete(o *config.AuditOptions) error {
	if o.PolicyFile != "" && !Enabled(*o) {
		return errors.New("Options.Audit.PolicyFile has no effect without a destination of events: add Options.Audit.Log.Path or " +
			"Options.Audit.Webhook.ConfigFile")
	}
	if err := completeLog(&o.Log); err != nil {
		return err
	}
	return completeWebhook(&o.Webhook)
}

func completeLog(o *config.AuditLogOptions) error {
	const field = "Audit.Log"
	if o.Path == "" {
		return unset(field, *o, "add "+options+field+".Path")
	}
	if err := oneOf(field+".Format", &o.Format, formatJSON, formatLegacy); err != nil {
		return err
	}
	if err := oneOf(field+".Mode", &o.Mode, modeBlocking, modeBatch, modeStrict); err != nil {
		return err
	}
	if o.Path == "-" {
		if err := unset(field+".Rotation", o.Rotation, "standard output is not rotated"); err != nil {
			return err
		}
	}
	if err := completeBatch(field, o.Mode, &o.Batch, config.AuditBatchOptions{BufferSize: 10_000, MaxSize: 1, ThrottleQPS: -1}); err != nil {
		return err
	}
	return completeTruncate(field+".Truncate", &o.Truncate)
}

func completeWebhook(o *config.AuditWebhookOptions) error {
	const field = "Audit.Webhook"
	if o.ConfigFile == "" {
		return unset(field, *o, "add "+options+field+".ConfigFile")
	}
	if err := oneOf(field+".Mode", &o.Mode, modeBatch, modeBlocking, modeStrict); err != nil {
		return err
	}
	if o.InitialBackoff < 0 {
		return fmt.Errorf(options+"%s.InitialBackoff %v is negative", field, o.InitialBackoff)
	}
	setDefault(&o.InitialBackoff, 10*time.Second)
	defaults := config.AuditBatchOptions{BufferSize: 10_000, MaxSize: 400, MaxWait: 30 * time.Second, ThrottleQPS: 10, ThrottleBurst: 15}
	if err := completeBatch(field, o.Mode, &o.Batch, defaults); err != nil {
		return err
	}
	return completeTruncate(field+".Truncate", &o.Truncate)
}

func completeBatch(of, mode string, o *config.AuditBatchOptions, defaults config.AuditBatchOptions) error {
	field := of + ".Batch"
	if mode != modeBatch {
		return unset(field, *o, "add "+options+of+".Mode "+modeBatch)
	}
	setDefault(&o.BufferSize, defaults.BufferSize)
	setDefault(&o.MaxSize, defaults.MaxSize)
	setDefault(&o.MaxWait, defaults.MaxWait)
	setDefault(&o.ThrottleQPS, defaults.ThrottleQPS)
	setDefault(&o.ThrottleBurst, max(defaults.ThrottleBurst, 1))
	switch {
	case o.BufferSize < 0:
		return fmt.Errorf(options+"%s.BufferSize %d is negative", field, o.BufferSize)
	case o.MaxSize < 0:
		return fmt.Errorf(options+"%s.MaxSize %d is negative", field, o.MaxSize)
	case o.MaxWait < 0:
		return fmt.Errorf(options+"%s.MaxWait %v is negative", field, o.MaxWait)
	case o.ThrottleBurst < 0:
		return fmt.Errorf(options+"%s.ThrottleBurst %d is negative", field, o.ThrottleBurst)
	}
	return nil
}

func completeTruncate(field string, o *config.AuditTruncateOptions) error {
	if !o.Enabled {
		return unset(field, *o, "add "+options+field+".Enabled")
	}
	setDefault(&o.MaxEventSize, 100<<10)
	setDefault(&o.MaxBatchSize, 10<<20)
	switch {
	case o.MaxEventSize < 0:
		return fmt.Errorf(options+"%s.MaxEventSize %d is negative", field, o.MaxEventSize)
	case o.MaxBatchSize < o.MaxEventSize:
		return fmt.Errorf(options+"%s.MaxBatchSize %d is less than "+options+"%[1]s.MaxEventSize %[3]d", field, o.MaxBatchSize, o.MaxEventSize)
	}
	return nil
}

// options is the prefix of field names in messages.
const options = "Options."

func setDefault[T comparable](value *T, otherwise T) {
	if *value == *new(T) {
		*value = otherwise
	}
}

// oneOf checks a choice. The first choice is the default.
func oneOf(field string, value *string, choices ...string) error {
	setDefault(value, choices[0])
	if !slices.Contains(choices, *value) {
		last := len(choices) - 1
		return fmt.Errorf("%s %q: choose %s or %s", options+field, *value, strings.Join(choices[:last], ", "), choices[last])
	}
	return nil
}

// unset reports an error for the first non-zero field of given, whose fields have no effect for the given reason.
func unset(field string, given any, reason string) error {
	value := reflect.ValueOf(given)
	for i := range value.NumField() {
		part, name := value.Field(i), field+"."+value.Type().Field(i).Name
		switch {
		case part.IsZero():
		case part.Kind() == reflect.Struct:
			return unset(name, part.Interface(), reason)
		default:
			return fmt.Errorf("%s has no effect: %s", options+name, reason)
		}
	}
	return nil
}
