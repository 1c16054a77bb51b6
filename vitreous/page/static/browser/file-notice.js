// @ts-check
// Browsers do not load the modules of this page from a file: URL. This script runs there, and says what to do.

if (location.protocol === "file:") {
  const chinese = navigator.language.toLowerCase().startsWith("zh");
  document.getElementById("panes").textContent = chinese
    ? "此页面需要 Web 服务器：在其文件夹中运行 python3 -m http.server，然后打开 http://localhost:8000。"
    : "This page needs a web server: run python3 -m http.server in its folder, then open http://localhost:8000.";
}
