/** A style sheet as text: the report's program brings its own. */
declare module "*.css" {
  const text: string;
  export default text;
}
