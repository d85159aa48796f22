// Command resigned reads a service account token and prints it with another expiry time, signed as the server would
// sign it. So tests need not wait ten minutes for a token to expire.
//
//	resigned DURATION KEY < TOKEN
package main

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "resigned:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return errors.New("want DURATION KEY")
	}
	left, err := time.ParseDuration(os.Args[1])
	if err != nil {
		return err
	}
	key, err := readKey(os.Args[2])
	if err != nil {
		return err
	}
	token, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	signed, err := resign(strings.TrimSpace(string(token)), left, key)
	if err == nil {
		fmt.Println(signed)
	}
	return err
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T", file, key)
	}
	return private, nil
}

// resign changes the token's expiry time to so much time from now.
func resign(token string, left time.Duration, key *ecdsa.PrivateKey) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errors.New("that is no token")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims map[string]any
	if err := json.Unmarshal(text, &claims); err != nil {
		return "", err
	}
	expires := time.Now().Add(left)
	issued := min(time.Now().Unix(), expires.Add(-time.Hour).Unix())
	claims["iat"], claims["nbf"], claims["exp"] = issued, issued, expires.Unix()
	if text, err = json.Marshal(claims); err != nil {
		return "", err
	}
	signing := parts[0] + "." + base64.RawURLEncoding.EncodeToString(text)
	digest := sha256.Sum256([]byte(signing))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", err
	}
	signature := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	return signing + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
