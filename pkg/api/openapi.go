package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// The description of the routes, written by hand. A test drives every route
// from it and checks every answer of every other test against it.
//
//go:embed openapi.yaml
var openAPI []byte

// documents are the answers that never change, made once.
type documents struct {
	openAPI, page []byte
}

func newDocuments(version, commit string) (*documents, error) {
	var document map[string]any
	if err := yaml.Unmarshal(openAPI, &document); err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	if about, ok := document["info"].(map[string]any); ok && version != "" {
		about["version"], about["x-commit"] = version, commit
	}
	asJSON, err := json.Marshal(document)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	page, err := renderPage(openAPI)
	if err != nil {
		return nil, fmt.Errorf("page of openapi.yaml: %w", err)
	}
	return &documents{asJSON, page}, nil
}

func (s *Server) getOpenAPI(c *call) error {
	made, err := s.documents()
	if err != nil {
		return err
	}
	return answerDocument(c, "application/json", made.openAPI)
}

func (s *Server) getDocs(c *call) error {
	made, err := s.documents()
	if err != nil {
		return err
	}
	// The page needs nothing but its own style.
	c.w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	return answerDocument(c, "text/html; charset=utf-8", made.page)
}

func answerDocument(c *call, media string, document []byte) error {
	h := c.w.Header()
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(document)))
	h.Set("Cache-Control", "public, max-age=300")
	h.Set("X-Content-Type-Options", "nosniff")
	c.w.WriteHeader(http.StatusOK)
	_, _ = c.w.Write(document)
	return nil
}
