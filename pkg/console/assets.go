package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// assets/vendor holds unmodified files of npm packages. make console-assets fetches
// them by the lock file next to them.
//
//go:embed assets/*.js assets/*.css assets/*.svg assets/vendor/*.js assets/vendor/*.css
var assetFiles embed.FS

type asset struct {
	content, packed []byte
	kind            string
	hash            string
}

// assets are all files that pages reference, by path.
type assets struct{ files map[string]asset }

func loadAssets() (*assets, error) {
	all := &assets{files: map[string]asset{}}
	err := fs.WalkDir(assetFiles, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := assetFiles.ReadFile(name)
		if err != nil {
			return err
		}
		packed, err := pack(content)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		all.files["/"+name] = asset{content, packed, mime.TypeByExtension(path.Ext(name)), hex.EncodeToString(sum[:8])}
		return nil
	})
	return all, err
}

func pack(content []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err = w.Write(content); err == nil {
		err = w.Close()
	}
	return b.Bytes(), err
}

// path is the URL of a file. It contains the file's hash, so that browsers can cache
// it forever.
func (a *assets) path(name string) (string, error) {
	file, ok := a.files["/assets/"+name]
	if !ok {
		return "", fmt.Errorf("there is no asset %s", name)
	}
	return "/assets/" + name + "?" + file.hash, nil
}

func (a *assets) serve(w http.ResponseWriter, r *http.Request) {
	file, ok := a.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", file.kind)
	h.Set("Vary", "Accept-Encoding")
	if r.URL.RawQuery == file.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content := file.content
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		content = file.packed
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(content)))
	_, _ = w.Write(content) // fails only when the browser has disconnected
}
