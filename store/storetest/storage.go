package storetest

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	suite "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// storageTest runs one function of the API machinery's suite, on a new backend.
type storageTest struct {
	function string
	needs    Needs
	// unsafeDeletionOff switches off the feature AllowUnsafeMalformedObjectDeletion: with it, corrupt objects are
	// reported in another way than the function expects.
	unsafeDeletionOff bool
	run               func(ctx context.Context, t *testing.T, s *pods)
}

// simple returns a test that needs nothing but a storage.
func simple(function string, run func(context.Context, *testing.T, storage.Interface)) storageTest {
	return storageTest{function: function, run: func(ctx context.Context, t *testing.T, s *pods) { run(ctx, t, s) }}
}

// undecoded returns a test that changes the transformer or the codec while it runs.
func undecoded(function string, run func(context.Context, *testing.T, *pods)) storageTest {
	return storageTest{function: function, needs: Needs{NothingDecoded: true}, run: run}
}

// A function may be here more than once, in several variants.
var storageTests = []storageTest{
	{function: "RunTestCreate", run: func(ctx context.Context, t *testing.T, s *pods) { suite.RunTestCreate(ctx, t, s, s.checkStored) }},
	simple("RunTestCreateWithTTL", suite.RunTestCreateWithTTL),
	simple("RunTestCreateWithKeyExist", suite.RunTestCreateWithKeyExist),
	simple("RunTestGet", suite.RunTestGet),
	simple("RunTestUnconditionalDelete", suite.RunTestUnconditionalDelete),
	simple("RunTestConditionalDelete", suite.RunTestConditionalDelete),
	simple("RunTestDeleteWithSuggestion", suite.RunTestDeleteWithSuggestion),
	simple("RunTestDeleteWithSuggestionAndConflict", suite.RunTestDeleteWithSuggestionAndConflict),
	simple("RunTestDeleteWithConflict", suite.RunTestDeleteWithConflict),
	simple("RunTestDeleteWithSuggestionOfDeletedObject", suite.RunTestDeleteWithSuggestionOfDeletedObject),
	simple("RunTestValidateDeletionWithSuggestion", suite.RunTestValidateDeletionWithSuggestion),
	simple("RunTestValidateDeletionWithOnlySuggestionValid", suite.RunTestValidateDeletionWithOnlySuggestionValid),
	simple("RunTestPreconditionalDeleteWithSuggestion", suite.RunTestPreconditionalDeleteWithSuggestion),
	simple("RunTestPreconditionalDeleteWithOnlySuggestionPass", suite.RunTestPreconditionalDeleteWithOnlySuggestionPass),
	{function: "RunTestList", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestList(ctx, t, s, s.compact, false, suite.NewKubernetesRecorder(nil))
	}},
	{function: "RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(ctx, t, s, s.codec.failing.Store)
	}},
	{function: "RunTestDeleteExpectedTransformOrDecodeError", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestDeleteExpectedTransformOrDecodeError(ctx, t, s, s.codec.failing.Store)
	}},
	{function: "RunTestDeleteExpectedTransformOrDecodeError", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestDeleteExpectedTransformOrDecodeError(ctx, t, s, s.transformer.failing.Store)
	}},
	{function: "RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(ctx, t, s)
	}},
	{function: "RunTestConsistentList", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestConsistentList(ctx, t, s, s.increaseRevision, s.traits.Cached, true, s.traits.Cached)
	}},
	{function: "RunTestGetListNonRecursive", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestGetListNonRecursive(ctx, t, s.increaseRevision, s)
	}},
	simple("RunTestGetListRecursivePrefix", suite.RunTestGetListRecursivePrefix),
	undecoded("RunTestGetListWithErrorAggregation", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestGetListWithErrorAggregation(ctx, t, s, errCorrupt)
	}),
	{function: "RunTestGetListWithoutErrorAggregation", needs: Needs{NothingDecoded: true}, unsafeDeletionOff: true,
		run: func(ctx context.Context, t *testing.T, s *pods) {
			suite.RunTestGetListWithoutErrorAggregation(ctx, t, s, errCorrupt)
		}},
	undecoded("RunTestListContinuation", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestListContinuation(ctx, t, s, s.checkReads)
	}),
	undecoded("RunTestListPaginationRareObject", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestListPaginationRareObject(ctx, t, s, s.checkReads)
	}),
	undecoded("RunTestListContinuationWithFilter", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestListContinuationWithFilter(ctx, t, s, s.checkReads)
	}),
	{function: "RunTestListInconsistentContinuation", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestListInconsistentContinuation(ctx, t, s, s.compact)
	}},
	undecoded("RunTestListResourceVersionMatch", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestListResourceVersionMatch(ctx, t, s)
	}),
	undecoded("RunTestGuaranteedUpdate", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestGuaranteedUpdate(ctx, t, s, s.checkStored)
	}),
	{function: "RunTestGuaranteedUpdate", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestGuaranteedUpdate(ctx, t, s, s.checkStored)
	}},
	simple("RunTestGuaranteedUpdateWithTTL", suite.RunTestGuaranteedUpdateWithTTL),
	{function: "RunTestGuaranteedUpdateChecksStoredData", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestGuaranteedUpdateChecksStoredData(ctx, t, s)
	}},
	simple("RunTestGuaranteedUpdateWithConflict", suite.RunTestGuaranteedUpdateWithConflict),
	simple("RunTestGuaranteedUpdateWithSuggestionAndConflict", suite.RunTestGuaranteedUpdateWithSuggestionAndConflict),
	{function: "RunTestTransformationFailure", needs: Needs{NothingDecoded: true}, unsafeDeletionOff: true,
		run: func(ctx context.Context, t *testing.T, s *pods) { suite.RunTestTransformationFailure(ctx, t, s) }},
	{function: "RunTestStats", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestStats(ctx, t, s, s.codec, s.transformer, !s.traits.NoSizes)
	}},
	simple("RunTestListPaging", suite.RunTestListPaging),
	simple("RunTestNamespaceScopedList", suite.RunTestNamespaceScopedList),
	{function: "RunTestCompactRevision", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestCompactRevision(ctx, t, s, s.increaseRevision, s.compact)
	}},
	simple("RunTestKeySchema", suite.RunTestKeySchema),

	simple("RunTestWatch", suite.RunTestWatch),
	{function: "RunTestWatchFromZero", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestWatchFromZero(ctx, t, s, s.compact)
	}},
	simple("RunTestDeleteTriggerWatch", suite.RunTestDeleteTriggerWatch),
	simple("RunTestWatchFromNonZero", suite.RunTestWatchFromNonZero),
	simple("RunTestDelayedWatchDelivery", suite.RunTestDelayedWatchDelivery),
	undecoded("RunTestWatchError", func(ctx context.Context, t *testing.T, s *pods) { suite.RunTestWatchError(ctx, t, s) }),
	undecoded("RunTestWatchWithUnsafeDelete", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestWatchWithUnsafeDelete(ctx, t, s, errCorrupt)
	}),
	simple("RunTestWatchContextCancel", suite.RunTestWatchContextCancel),
	simple("RunTestWatcherTimeout", suite.RunTestWatcherTimeout),
	simple("RunTestWatchDeleteEventObjectHaveLatestRV", suite.RunTestWatchDeleteEventObjectHaveLatestRV),
	simple("RunTestWatchInitializationSignal", suite.RunTestWatchInitializationSignal),
	{function: "RunOptionalTestProgressNotify", needs: Needs{BookmarkInterval: 100 * time.Millisecond},
		run: func(ctx context.Context, t *testing.T, s *pods) {
			suite.RunOptionalTestProgressNotify(ctx, t, s, s.increaseRevision)
		}},
	{function: "RunTestClusterScopedWatch", needs: Needs{clusterScoped: true},
		run: func(ctx context.Context, t *testing.T, s *pods) { suite.RunTestClusterScopedWatch(ctx, t, s) }},
	simple("RunTestNamespaceScopedWatch", suite.RunTestNamespaceScopedWatch),
	{function: "RunTestWatchDispatchBookmarkEvents", run: func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunTestWatchDispatchBookmarkEvents(ctx, t, s, !s.traits.NoBookmarks)
	}},
	simple("RunTestOptionalWatchBookmarksWithCorrectResourceVersion", suite.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
	simple("RunSendInitialEventsBackwardCompatibility", suite.RunSendInitialEventsBackwardCompatibility),
	simple("RunWatchSemantics", suite.RunWatchSemantics),
	simple("RunWatchSemanticInitialEventsExtended", suite.RunWatchSemanticInitialEventsExtended),
	simple("RunWatchListMatchSingle", suite.RunWatchListMatchSingle),
	undecoded("RunWatchErrorIsBlockingFurtherEvents", func(ctx context.Context, t *testing.T, s *pods) {
		suite.RunWatchErrorIsBlockingFurtherEvents(ctx, t, s)
	}),
}

// RunStorage runs the API machinery's storage suite on the revisioned core, checks the guarantees of
// store.ConditionalWriter, and prints a line with the number of passed functions of the suite. It needs the sources
// of that package, which it checks for tests that are neither run nor excluded here.
func RunStorage(t *testing.T, name string, open OpenBackend) {
	RunStorageWith(t, name, open, Traits{})
}

// RunStorageWith is RunStorage on a backend with traits of its own. It is skipped with -short.
func RunStorageWith(t *testing.T, name string, open OpenBackend, traits Traits) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the API machinery's whole suite of storages")
	}
	t.Run("ConditionalWrites", func(t *testing.T) { runConditionalWrites(t, open, traits) })
	if !traits.OneView {
		t.Run("Views", func(t *testing.T) { runViews(t, open) })
	}
	passed := map[string]bool{}
	for _, test := range storageTests {
		if _, excluded := traits.NotRun[test.function]; excluded {
			continue
		}
		ok := t.Run(test.function, func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
				features.AllowUnsafeMalformedObjectDeletion, !test.unsafeDeletionOff)
			s := openPods(t, open, test.needs)
			s.traits = traits
			test.run(t.Context(), t, s)
		})
		before, seen := passed[test.function]
		passed[test.function] = ok && (before || !seen)
	}

	functions := suiteFunctions(t)
	count := 0
	for _, function := range functions {
		reason, excluded := traits.NotRun[function]
		_, run := passed[function]
		switch {
		case passed[function]:
			count++
		case excluded:
			fmt.Printf("storage suite (%s): %s is not run: %s\n", name, function, reason)
		case !run && !slices.Contains(storageBenchmarks, function):
			t.Errorf("%s is in the suite, but neither run nor excluded", function)
		}
	}
	fmt.Printf("storage suite (%s): %d of %d passed\n", name, count, len(functions)-len(storageBenchmarks)-len(traits.NotRun))
}

// suiteFunctions returns the names of the suite's exported functions Run*.
func suiteFunctions(t *testing.T) []string {
	file, _ := goruntime.FuncForPC(reflect.ValueOf(suite.RunTestCreate).Pointer()).FileLine(0)
	sources, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources of the storage suite at %s (%v); was this built with -trimpath?", filepath.Dir(file), err)
	}
	var functions []string
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Run") {
				functions = append(functions, f.Name.Name)
			}
		}
	}
	return functions
}

// pods is the storage under test, with the helpers that the suite needs.
type pods struct {
	storage.Interface
	backend     Backend
	elsewhere   storage.Interface // another resource, whose writes raise the revision
	codec       *failingCodec
	transformer *transformer
	traits      Traits
}

const storedPrefix = "test!"

func openPods(t testing.TB, open OpenBackend, needs Needs) *pods {
	s := &pods{
		backend:     open(t, needs),
		codec:       &failingCodec{Codec: PodCodec()},
		transformer: &transformer{written: map[string][]byte{}},
	}
	s.transformer.set(suite.NewPrefixTransformer([]byte(storedPrefix), false))
	t.Cleanup(func() {
		if err := s.backend.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})

	resource := Pods("/pods")
	resource.Codec, resource.Transformer = s.codec, s.transformer
	if needs.clusterScoped {
		resource.KeyFunc = func(object runtime.Object) (string, error) {
			return resource.Prefix + "/" + object.(*example.Pod).Name, nil
		}
	}
	var err error
	if s.Interface, err = s.backend.Open(resource); err != nil {
		t.Fatal(err)
	}
	if s.elsewhere, err = s.backend.Open(Pods("/elsewhere")); err != nil {
		t.Fatal(err)
	}
	return s
}

// increaseRevision makes a write that no test looks at.
func (s *pods) increaseRevision(ctx context.Context, t *testing.T) int64 {
	pod := &example.Pod{}
	if err := s.elsewhere.Create(ctx, fmt.Sprintf("/elsewhere/%d", s.backend.Revision()), &example.Pod{}, pod, 0); err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseInt(pod.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// compact raises the revision by one, as the suite expects of etcd, where the compacted revision is stored as a key.
func (s *pods) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if !s.traits.CompactionRaises {
		s.increaseRevision(ctx, t)
	}
	if err := s.backend.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
}

// checkStored checks that the fields owned by the store are not stored in the object.
func (s *pods) checkStored(_ context.Context, t *testing.T, key string) {
	s.transformer.mu.Lock()
	data, ok := s.transformer.written[key]
	s.transformer.mu.Unlock()
	if !ok {
		t.Fatalf("nothing was stored at %s", key)
	}
	object, err := runtime.Decode(s.codec, data)
	if err != nil {
		t.Fatalf("what was stored at %s: %v", key, err)
	}
	if pod := object.(*example.Pod); pod.ResourceVersion != "" || pod.GetSelfLink() != "" {
		t.Errorf("stored with resource version %q and self link %q", pod.ResourceVersion, pod.GetSelfLink())
	}
}

// checkReads checks that a list reads no more objects than it has to. A list from a watch cache reads none, or an
// unpredictable number.
func (s *pods) checkReads(t *testing.T, _, objects uint64) {
	if s.traits.Cached {
		return
	}
	if reads := s.transformer.get().(*suite.PrefixTransformer).GetReadsAndReset(); reads != objects {
		t.Errorf("%d objects were read, want %d", reads, objects)
	}
}

// UpdatePrefixTransformer implements suite.InterfaceWithPrefixTransformer.
func (s *pods) UpdatePrefixTransformer(modify suite.PrefixTransformerModifier) func() {
	before := s.transformer.get()
	changed := *before.(*suite.PrefixTransformer)
	s.transformer.set(modify(&changed))
	return func() { s.transformer.set(before) }
}

// UpdateTransformer implements suite.InterfaceWithTransformerOverride.
func (s *pods) UpdateTransformer(modify suite.TransformerModifier) func() {
	before := s.transformer.get()
	s.transformer.set(transient{modify(before)})
	return func() { s.transformer.set(before) }
}

// errCorrupt is the error that the suite makes the transformer return for a corrupt object.
var errCorrupt = errors.New("bits have flipped")

// transient turns errors other than errCorrupt into errors that reveal nothing about the object.
type transient struct{ value.Transformer }

func (x transient) TransformFromStorage(ctx context.Context, data []byte, c value.Context) ([]byte, bool, error) {
	data, stale, err := x.Transformer.TransformFromStorage(ctx, data, c)
	if err != nil && !errors.Is(err, errCorrupt) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return data, stale, err
}

// transformer can be replaced and made to fail, and records the written data.
type transformer struct {
	failing atomic.Bool
	mu      sync.Mutex
	current value.Transformer
	written map[string][]byte // by key, before it was transformed
}

func (x *transformer) get() value.Transformer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.current
}

func (x *transformer) set(current value.Transformer) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.current = current
}

// TransformFromStorage implements value.Transformer.
func (x *transformer) TransformFromStorage(ctx context.Context, data []byte, c value.Context) ([]byte, bool, error) {
	if x.failing.Load() {
		return nil, false, errCorrupt
	}
	return x.get().TransformFromStorage(ctx, data, c)
}

// TransformToStorage implements value.Transformer.
func (x *transformer) TransformToStorage(ctx context.Context, data []byte, c value.Context) ([]byte, error) {
	x.mu.Lock()
	x.written[string(c.AuthenticatedData())] = data
	x.mu.Unlock()
	return x.get().TransformToStorage(ctx, data, c)
}

// failingCodec is a codec that can be made to fail.
type failingCodec struct {
	runtime.Codec
	failing atomic.Bool
}

// Decode implements runtime.Decoder.
func (c *failingCodec) Decode(
	data []byte,
	defaults *schema.GroupVersionKind,
	into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if c.failing.Load() {
		return nil, nil, errCorrupt
	}
	return c.Codec.Decode(data, defaults, into)
}

var storageBenchmarks = []string{"RunBenchmarkWriteThroughput", "RunBenchmarkStoreList", "RunBenchmarkStoreStats"}

// BenchmarkStorage runs the benchmarks of the API machinery's storage suite on the given number of pods. At their
// full size of 150,000 pods they need far more than the memory of a small machine.
func BenchmarkStorage(b *testing.B, open OpenBackend, podCount int) {
	const namespaces = 50
	data := suite.PrepareBenchmarkData(namespaces, max(1, podCount/namespaces), max(1, podCount/30))
	b.Run(storageBenchmarks[0], func(b *testing.B) {
		suite.RunBenchmarkWriteThroughput(b.Context(), b, openPods(b, open, Needs{}), data, false, nil)
	})
	b.Run(storageBenchmarks[1], func(b *testing.B) {
		s := openPods(b, open, Needs{})
		if err := suite.PrecreateBenchmarkPods(b.Context(), s, data); err != nil {
			b.Fatal(err)
		}
		suite.RunBenchmarkStoreList(b.Context(), b, s, data, false)
	})
	b.Run(storageBenchmarks[2], func(b *testing.B) {
		s := openPods(b, open, Needs{})
		if err := suite.PrecreateBenchmarkPods(b.Context(), s, data); err != nil {
			b.Fatal(err)
		}
		suite.RunBenchmarkStoreStats(b.Context(), b, s)
	})
}
