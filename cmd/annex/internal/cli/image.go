package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/annexapi/annex/cmd/annex/internal/image"
)

// imageFlags are the flags of every verb that builds an image.
type imageFlags struct {
	ref, platform, base string
}

func (f *imageFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.ref, "image", "", "reference of the image, REGISTRY/NAME:TAG; required")
	cmd.Flags().StringVar(&f.platform, "platform", "", "comma-separated list of platforms; several platforms make an image index "+
		"(default: linux/ and this machine's architecture)")
	cmd.Flags().
		StringVar(&f.base, "base", image.Scratch, "base image, such as gcr.io/distroless/static:nonroot; "+image.Scratch+
			" is none")
}

// project finds the server's package, and checks the flags.
func (f *imageFlags) project(ctx context.Context, args []string, say func(string, ...any)) (image.Options, name.Tag, error) {
	if f.ref == "" {
		return image.Options{}, name.Tag{}, errors.New("--image is missing: set it to a reference such as registry.example.com/demo:v1")
	}
	tag, err := image.ParseReference(f.ref)
	if err != nil {
		return image.Options{}, name.Tag{}, err
	}
	platforms, err := image.ParsePlatforms(cmp.Or(f.platform, "linux/"+runtime.GOARCH))
	if err != nil {
		return image.Options{}, name.Tag{}, err
	}
	p, err := findServerModule(ctx, args)
	if err != nil {
		return image.Options{}, name.Tag{}, err
	}
	return image.Options{Dir: p.dir, Package: p.main, Name: path.Base(p.main), Platforms: platforms, Base: f.base, Say: say}, tag, nil
}

// sayTo returns a function that prints a line about a step.
func sayTo(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
}

func newImage() *cobra.Command {
	var flags imageFlags
	var layoutDir, tarball, output string
	var push, force, dryRun bool
	cmd := &cobra.Command{
		Use:   "image [PACKAGE] --image REGISTRY/NAME:TAG",
		Short: "Build a container image of a project's server, without a container engine",
		Long: `Compiles a project's server for Linux, without cgo, and builds a container image with an
unprivileged user and the program, on top of --base if you set it. The same source makes the
same image, byte for byte.

--push pushes the image to its registry, with the credentials of docker login; --layout writes
it into an OCI image layout; --tarball writes it into a file for docker load, podman load or
kind load image-archive. Set at least one of these flags.

PACKAGE is the server's main package; the default is the package beside go.mod. The verb prints
the image reference with the digest.`,
		Example: `  annex image --image registry.example.com/demo:v1 --push
  annex image --image demo:v1 --tarball demo.tar && kind load image-archive demo.tar
  annex image --image registry.example.com/demo:v1 --platform linux/amd64,linux/arm64 --layout oci`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !push && layoutDir == "" && tarball == "" {
				return usageError{errors.New("image: no destination: set --push, --layout DIR or --tarball FILE")}
			}
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: use text or json", output)}
			}
			say := sayTo(cmd.ErrOrStderr())
			options, tag, err := flags.project(cmd.Context(), args, say)
			if err != nil {
				return usageError{fmt.Errorf("image: %w", err)}
			}
			if tarball != "" && len(options.Platforms) > 1 {
				return usageError{errors.New("image: --tarball supports only one platform: set one --platform, or use --layout")}
			}
			made, err := image.Build(cmd.Context(), options)
			if err != nil {
				return err
			}
			if !dryRun {
				if err := deliver(cmd.Context(), made, tag, layoutDir, tarball, push, force); err != nil {
					return err
				}
			}
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{
					"image": tag.String(), "digest": made.Digest, "pushed": push && !dryRun, "layout": layoutDir, "tarball": tarball,
				})
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s@%s\n", tag, made.Digest)
			return err
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&push, "push", false, "push the image to its registry, with the credentials of docker login")
	cmd.Flags().
		StringVar(&layoutDir, "layout", "", "folder of an OCI image layout for the image; replaces an image with the same reference")
	cmd.Flags().StringVar(&tarball, "tarball", "", "output file for docker load, podman load or kind load image-archive")
	cmd.Flags().BoolVar(&force, "force", false, "replace the file of --tarball")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "build the image and print its digest, without push or output")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "format: text or json")
	return cmd
}

func deliver(ctx context.Context, made *image.Image, tag name.Tag, layoutDir, tarball string, push, force bool) error {
	if tarball != "" {
		if err := made.WriteTarball(tarball, tag, force); err != nil {
			return err
		}
	}
	if layoutDir != "" {
		if err := made.WriteLayout(layoutDir, tag); err != nil {
			return err
		}
	}
	if push {
		return made.Push(ctx, tag)
	}
	return nil
}
